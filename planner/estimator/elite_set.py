"""The best plans that a search has seen, and how they are kept.

Invariant: all differ in their objective; the worst goes first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.jit import jit
from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES, Floats, Ints
from planner.estimator.unplaced_plan import UnplacedPlan

ELITES = 32


@by_reference
class EliteSet(NamedTuple):
    """The best plans seen, all different; the first `number[0]` rows hold, in no order.

    Attributes:
        number: [1] of plans.
        value: [E] objective.
        templates: [E] number of templates.
        depth: [E, K].
        options: [E, K, D].
        replicas: [E, K].
        size: [E, K] index of the micro-batch size.
        most: [E, K] bound on micro-batches.
        tau_s: [E, K] bottleneck.
        sum_s: [E, K] sum over stages.
        blocks: [E, K, D].
    """

    number: Ints
    value: Floats
    templates: Ints
    depth: Ints
    options: Ints
    replicas: Ints
    size: Ints
    most: Ints
    tau_s: Floats
    sum_s: Floats
    blocks: Ints


def new_elite_set() -> EliteSet:
    """None yet."""
    return EliteSet(
        np.zeros(1, np.int64),
        np.full(ELITES, np.inf),
        np.zeros(ELITES, np.int64),
        np.zeros((ELITES, MAX_TEMPLATES), np.int64),
        np.zeros((ELITES, MAX_TEMPLATES, MAX_DEPTH), np.int64),
        np.zeros((ELITES, MAX_TEMPLATES), np.int64),
        np.zeros((ELITES, MAX_TEMPLATES), np.int64),
        np.zeros((ELITES, MAX_TEMPLATES), np.int64),
        np.zeros((ELITES, MAX_TEMPLATES)),
        np.zeros((ELITES, MAX_TEMPLATES)),
        np.zeros((ELITES, MAX_TEMPLATES, MAX_DEPTH), np.int64),
    )


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
    elites.templates[row] = plan.number[0]
    for k in range(plan.number[0]):
        f = plan.chosen[k]
        elites.depth[row, k] = plan.depth[k]
        elites.replicas[row, k] = plan.replicas[k]
        elites.size[row, k] = plan.size[k, f]
        elites.most[row, k] = plan.most[k, f]
        elites.tau_s[row, k] = plan.tau_s[k, f]
        elites.sum_s[row, k] = plan.sum_s[k, f]
        for s in range(plan.depth[k]):
            elites.options[row, k, s] = plan.options[k, s]
            elites.blocks[row, k, s] = plan.blocks[k, f, s]


def offer(source: EliteSet, row: int, target: EliteSet) -> None:
    """Keep one of the best plans of another pool, if it is among the best here."""
    place = claim_row(target, source.value[row])
    if place >= 0:
        for kept, offered in zip(target[1:], source[1:], strict=True):
            kept[place] = offered[row]


@jit
def load_elite(elites: EliteSet, row: int, plan: UnplacedPlan) -> None:
    """The templates of one of the best plans, each with the one filling that its price took."""
    plan.number[0] = elites.templates[row]
    for k in range(elites.templates[row]):
        plan.depth[k] = elites.depth[row, k]
        plan.replicas[k] = elites.replicas[row, k]
        plan.chosen[k] = 0
        plan.filling_count[k, 0] = 1
        plan.size[k, 0] = elites.size[row, k]
        plan.most[k, 0] = elites.most[row, k]
        plan.tau_s[k, 0] = elites.tau_s[row, k]
        plan.sum_s[k, 0] = elites.sum_s[row, k]
        for s in range(plan.depth[k]):
            plan.options[k, s] = elites.options[row, k, s]
            plan.blocks[k, 0, s] = elites.blocks[row, k, s]
