"""The best plans: what they hold, and what goes when a better one comes."""

from __future__ import annotations

import numpy as np

from planner.estimator.top_k import (
    TOP_K,
    claim_row,
    load_top,
    new_top_k,
    offer,
    remember,
)
from planner.estimator.unplaced_plan import new_plan


def plan(option: int):
    """One replica of one stage."""
    unplaced = new_plan()
    unplaced.number[0] = unplaced.depth[0] = unplaced.replicas[0] = 1
    unplaced.options[0, 0] = option
    return unplaced


def held(top_k) -> list[float]:
    return sorted(top_k.value[: top_k.number[0]].tolist())


def test_the_best_are_kept_and_the_worst_goes():
    top_k = new_top_k()
    for value in range(2 * TOP_K, 0, -1):
        remember(top_k, plan(0), float(value))
    assert held(top_k) == [float(value) for value in range(1, TOP_K + 1)]
    remember(top_k, plan(0), 1000.0)
    assert held(top_k)[-1] == TOP_K


def test_equally_good_plans_count_as_one():
    top_k = new_top_k()
    remember(top_k, plan(0), 2.0)
    remember(top_k, plan(1), 2.0 * (1 + 1e-13))
    assert top_k.number[0] == 1
    assert claim_row(top_k, 2.0) == -1


def test_a_plan_is_read_back_as_it_was():
    top_k, unplaced = new_top_k(), new_plan()
    remember(top_k, plan(3), 1.0)
    load_top(top_k, 0, unplaced)
    assert (
        unplaced.number[0],
        unplaced.depth[0],
        unplaced.replicas[0],
        unplaced.options[0, 0],
    ) == (1, 1, 1, 3)


def test_an_offered_plan_is_copied_whole():
    mine, theirs = new_top_k(), new_top_k()
    remember(theirs, plan(5), 1.0)
    remember(mine, plan(0), 2.0)
    offer(theirs, 0, mine)
    offer(theirs, 0, mine)  # known by now
    assert held(mine) == [1.0, 2.0]
    row = int(np.argmin(mine.value))
    for kept, offered in zip(mine.plans, theirs.plans, strict=True):
        assert np.array_equal(kept[row], offered[0])
