"""The small programmes against a library's solver and against enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from planner.search.column_generation.linear_programme import (
    branch_and_bound,
    complete,
    maximise,
)


def draw(seed: int, rows: int, columns: int):
    random = np.random.default_rng(seed)
    uses = random.integers(0, 6, (rows, columns)).astype(float)
    uses[0] += 1  # every column uses something
    worth = random.uniform(0.1, 1.2, columns) * uses.sum(axis=0)
    return worth, uses, random.integers(0, 20, rows).astype(float)


@pytest.mark.parametrize("seed", range(20))
def test_amounts_and_duals_are_those_of_a_solver(seed):
    worth, uses, room = draw(seed, 1 + seed % 6, 5 + 7 * (seed % 5))
    amounts, duals = np.zeros(len(worth)), np.zeros(len(room))
    total = maximise(worth, uses, room, amounts, duals)
    solved = linprog(-worth, A_ub=uses, b_ub=room, method="highs")
    assert total == pytest.approx(-solved.fun, abs=1e-7)
    assert amounts @ worth == pytest.approx(total, abs=1e-7)
    assert (uses @ amounts <= room + 1e-7).all()
    assert (duals @ uses >= worth - 1e-7).all(), "a column is worth more than its price"
    assert duals @ room == pytest.approx(total, abs=1e-7)


@pytest.mark.parametrize("seed", range(12))
def test_whole_amounts_are_the_best_of_all(seed):
    worth, uses, room = draw(seed, 1 + seed % 3, 4)
    most = [
        int(min(room[r] // uses[r, c] for r in range(len(room)) if uses[r, c] > 0))
        for c in range(4)
    ]
    best = max(
        float(np.array(counts) @ worth)
        for counts in product(*(range(n + 1) for n in most))
        if (uses @ np.array(counts) <= room).all()
    )
    counts = branch_and_bound(worth, uses, room, 2000, 0.0)
    assert counts @ worth == pytest.approx(best)
    assert (uses @ counts <= room).all()


def test_a_limit_on_nodes_still_gives_amounts_that_fit():
    worth, uses, room = draw(3, 4, 40)
    counts = branch_and_bound(worth, uses, room, 1, 0.0)
    assert (counts >= 0).all()
    assert (uses @ counts <= room).all()


def test_what_is_left_is_filled_up():
    counts = np.array([1, 0], np.int64)
    worth, uses = np.array([5.0, 2.0]), np.array([[3.0, 1.0]])
    assert complete(np.array([5.0]), uses, worth, counts) == 14.0
    assert counts.tolist() == [2, 2]
