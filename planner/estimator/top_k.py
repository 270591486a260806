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

TOP_K = 32


@by_reference
class TopK(NamedTuple):
    """The best plans seen, all different; the first `number[0]` rows hold, in no order.

    Attributes:
        number: [1] of plans.
        value: [E] objective.
        plans: [E, ...] the plans, each template with the one filling that its price took.
    """

    number: Ints
    value: Floats
    plans: UnplacedPlan


def new_top_k() -> TopK:
    """None yet."""
    return TopK(np.zeros(1, np.int64), np.full(TOP_K, np.inf), new_plan(TOP_K, fillings=1))


@jit
def worst_value(top_k: TopK) -> float:
    """Value below which a plan is kept; infinite while there is room."""
    worst = 0.0
    for e in range(TOP_K):
        worst = max(worst, top_k.value[e])
    return worst


@jit
def claim_row(top_k: TopK, value: float) -> int:
    """The row that a plan takes: a free one, or that of the worst; -1 if it is not to be kept."""
    worst = 0
    for e in range(top_k.number[0]):
        if abs(top_k.value[e] - value) <= 1e-12 * value:
            return -1
        if top_k.value[e] > top_k.value[worst]:
            worst = e
    if top_k.number[0] < TOP_K:
        top_k.number[0] += 1
        return top_k.number[0] - 1
    return worst if value < top_k.value[worst] else -1


@jit
def remember(top_k: TopK, plan: UnplacedPlan, value: float) -> None:
    """Keep the plan if it is among the best; equally good ones count as one."""
    row = claim_row(top_k, value)
    if row < 0:
        return
    top_k.value[row] = value
    kept = plan_at(top_k.plans, row)
    kept.number[0] = plan.number[0]
    for k in range(plan.number[0]):
        copy_stages(plan, k, kept, k)
        add_filling(plan, k, plan.chosen[k], kept, k)


def offer(source: TopK, row: int, target: TopK) -> None:
    """Keep one of the best plans of another set, if it is among the best here."""
    place = claim_row(target, source.value[row])
    if place >= 0:
        target.value[place] = source.value[row]
        for kept, offered in zip(target.plans, source.plans, strict=True):
            kept[place] = offered[row]


@jit
def load_top(top_k: TopK, row: int, plan: UnplacedPlan) -> None:
    """Copy one of the best plans, each template with its one filling."""
    copy_plan(plan_at(top_k.plans, row), plan)
