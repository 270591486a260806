"""The best plans: what they hold, and what goes when a better one comes."""

from __future__ import annotations

import numpy as np

from planner.estimator.elite_set import (
    ELITES,
    claim_row,
    load_elite,
    new_elite_set,
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


def held(elites) -> list[float]:
    return sorted(elites.value[: elites.number[0]].tolist())


def test_the_best_are_kept_and_the_worst_goes():
    elites = new_elite_set()
    for value in range(2 * ELITES, 0, -1):
        remember(elites, plan(0), float(value))
    assert held(elites) == [float(value) for value in range(1, ELITES + 1)]
    remember(elites, plan(0), 1000.0)
    assert held(elites)[-1] == ELITES


def test_equally_good_plans_count_as_one():
    elites = new_elite_set()
    remember(elites, plan(0), 2.0)
    remember(elites, plan(1), 2.0 * (1 + 1e-13))
    assert elites.number[0] == 1
    assert claim_row(elites, 2.0) == -1


def test_a_plan_is_read_back_as_it_was():
    elites, unplaced = new_elite_set(), new_plan()
    remember(elites, plan(3), 1.0)
    load_elite(elites, 0, unplaced)
    assert (
        unplaced.number[0],
        unplaced.depth[0],
        unplaced.replicas[0],
        unplaced.options[0, 0],
    ) == (1, 1, 1, 3)


def test_an_offered_plan_is_copied_whole():
    mine, theirs = new_elite_set(), new_elite_set()
    remember(theirs, plan(5), 1.0)
    remember(mine, plan(0), 2.0)
    offer(theirs, 0, mine)
    offer(theirs, 0, mine)  # known by now
    assert held(mine) == [1.0, 2.0]
    row = int(np.argmin(mine.value))
    for kept, offered in zip(mine.plans, theirs.plans, strict=True):
        assert np.array_equal(kept[row], offered[0])
