"""The best plans that a search has seen, and how they are kept.

Invariant: all differ in their objective; the worst goes first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.jit import jit
from planner.estimator.tables import Floats, Ints
from planner.estimator.unplaced_plan import (
    UnplacedPlan,
    add_filling,
    copy_plan,
    copy_stages,
    new_plan,
    plan_at,
)

ELITES = 32


@by_reference
class EliteSet(NamedTuple):
    """The best plans seen, all different; the first `number[0]` rows hold, in no order.

    Attributes:
        number: [1] of plans.
        value: [E] objective.
        plans: [E, ...] the plans, each template with the one filling that its price took.
    """

    number: Ints
    value: Floats
    plans: UnplacedPlan


def new_elite_set() -> EliteSet:
    """None yet."""
    return EliteSet(np.zeros(1, np.int64), np.full(ELITES, np.inf), new_plan(ELITES, fillings=1))


@jit
def worst_value(elites: EliteSet) -> float:
    """What a plan must be below to be kept; infinite while there is room."""
    worst = 0.0
    for e in range(ELITES):
        worst = max(worst, elites.value[e])
    return worst


@jit
def claim_row(elites: EliteSet, value: float) -> int:
    """The row that a plan takes: a free one, or that of the worst; -1 if it is not to be kept."""
    worst = 0
    for e in range(elites.number[0]):
        if abs(elites.value[e] - value) <= 1e-12 * value:
            return -1
        if elites.value[e] > elites.value[worst]:
            worst = e
    if elites.number[0] < ELITES:
        elites.number[0] += 1
        return elites.number[0] - 1
    return worst if value < elites.value[worst] else -1


@jit
def remember(elites: EliteSet, plan: UnplacedPlan, value: float) -> None:
    """Keep the plan if it is among the best; equally good ones count as one."""
    row = claim_row(elites, value)
    if row < 0:
        return
    elites.value[row] = value
    kept = plan_at(elites.plans, row)
    kept.number[0] = plan.number[0]
    for k in range(plan.number[0]):
        copy_stages(plan, k, kept, k)
        add_filling(plan, k, plan.chosen[k], kept, k)


def offer(source: EliteSet, row: int, target: EliteSet) -> None:
    """Keep one of the best plans of another set, if it is among the best here."""
    place = claim_row(target, source.value[row])
    if place >= 0:
        target.value[place] = source.value[row]
        for kept, offered in zip(target.plans, source.plans, strict=True):
            kept[place] = offered[row]


@jit
def load_elite(elites: EliteSet, row: int, plan: UnplacedPlan) -> None:
    """Copy one of the best plans, each template with its one filling."""
    copy_plan(plan_at(elites.plans, row), plan)
