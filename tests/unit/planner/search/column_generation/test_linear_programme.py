"""The linear programme against a library's solver, and its amounts rounded down."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from planner.search.column_generation.linear_programme import complete, maximise, round_down


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
def test_amounts_rounded_down_are_whole_and_leave_no_room_for_another_column(seed):
    worth, uses, room = draw(seed, 1 + seed % 3, 4)
    order = np.argsort(-worth)
    worth, uses = worth[order], np.ascontiguousarray(uses[:, order])
    amounts = np.zeros(4)
    total = maximise(worth, uses, room, amounts, np.zeros(len(room)))
    counts = round_down(worth, uses, room, amounts)
    left = room - uses @ counts
    assert (counts >= np.floor(amounts)).all()
    assert (left >= 0).all()
    assert not (uses <= left[:, None]).all(axis=0).any()
    assert counts @ worth <= total + 1e-9


def test_what_is_left_is_filled_up():
    counts = np.array([1, 0], np.int64)
    worth, uses = np.array([5.0, 2.0]), np.array([[3.0, 1.0]])
    complete(np.array([5.0]), uses, worth, counts)
    assert counts.tolist() == [2, 2]
