"""A plan before its placement: templates with replica counts, and the fillings of each.

Invariant: the first `number[0]` slots hold; the fillings of a slot belong to its stages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.jit import inlined, jit
from planner.estimator.reference_type import reference_to
from planner.estimator.tables import MAX_DEPTH, MAX_FILLINGS, MAX_TEMPLATES, Floats, Ints, Tables


@by_reference
class UnplacedPlan(NamedTuple):
    """Templates of a plan, K slots with room for F fillings each.

    Attributes:
        number: [1] of templates.
        depth: [K] stages.
        options: [K, D] option of each stage.
        replicas: [K] n.
        chosen: [K] the filling that the price took.
        pipelines: [K] replicas of the whole plan when the slot was filled; 0: to be filled again.
        filling_count: [K, 1] of fillings; of each:
        size: [K, F] index of the micro-batch size.
        tau_s: [K, F] bottleneck.
        sum_s: [K, F] sum over stages.
        most: [K, F] the largest M that memory allows.
        blocks: [K, F, D] blocks of each stage.
    """

    number: Ints
    depth: Ints
    options: Ints
    replicas: Ints
    chosen: Ints
    pipelines: Ints
    filling_count: Ints
    size: Ints
    tau_s: Floats
    sum_s: Floats
    most: Ints
    blocks: Ints


def new_plan(*rows: int, slots: int = MAX_TEMPLATES, fillings: int = MAX_FILLINGS) -> UnplacedPlan:
    """An empty plan; with `rows` so many of them, along a first axis of each array."""
    ints, floats = np.int64, np.float64
    shapes = (
        ((1,), ints),
        ((slots,), ints),
        ((slots, MAX_DEPTH), ints),
        ((slots,), ints),
        ((slots,), ints),
        ((slots,), ints),
        ((slots, 1), ints),
        ((slots, fillings), ints),
        ((slots, fillings), floats),
        ((slots, fillings), floats),
        ((slots, fillings), ints),
        ((slots, fillings, MAX_DEPTH), ints),
    )
    return UnplacedPlan(*(np.zeros((*rows, *shape), kind) for shape, kind in shapes))


@inlined
def plan_at(plans: UnplacedPlan, row: int) -> UnplacedPlan:
    """One of many plans, as a view."""
    plan: UnplacedPlan = reference_to(
        UnplacedPlan(
            plans.number[row],
            plans.depth[row],
            plans.options[row],
            plans.replicas[row],
            plans.chosen[row],
            plans.pipelines[row],
            plans.filling_count[row],
            plans.size[row],
            plans.tau_s[row],
            plans.sum_s[row],
            plans.most[row],
            plans.blocks[row],
        )
    )
    return plan


@jit
def copy_stages(source: UnplacedPlan, k: int, target: UnplacedPlan, j: int) -> None:
    """Give slot `j` of the target stages and replicas of slot `k` of the source, no filling yet."""
    target.depth[j] = source.depth[k]
    target.replicas[j] = source.replicas[k]
    target.filling_count[j, 0] = 0
    for s in range(source.depth[k]):
        target.options[j, s] = source.options[k, s]


@jit
def add_filling(source: UnplacedPlan, k: int, f: int, target: UnplacedPlan, j: int) -> None:
    """Give slot `j` of the target filling `f` of slot `k` of the source as well."""
    g = target.filling_count[j, 0]
    target.filling_count[j, 0] = g + 1
    target.size[j, g] = source.size[k, f]
    target.tau_s[j, g] = source.tau_s[k, f]
    target.sum_s[j, g] = source.sum_s[k, f]
    target.most[j, g] = source.most[k, f]
    for s in range(source.depth[k]):
        target.blocks[j, g, s] = source.blocks[k, f, s]


@jit
def copy_slot(source: UnplacedPlan, k: int, target: UnplacedPlan, j: int) -> None:
    """Make slot `j` of the target equal to slot `k` of the source."""
    copy_stages(source, k, target, j)
    target.chosen[j] = source.chosen[k]
    target.pipelines[j] = source.pipelines[k]
    for f in range(source.filling_count[k, 0]):
        add_filling(source, k, f, target, j)


@jit
def copy_plan(source: UnplacedPlan, target: UnplacedPlan) -> None:
    """Make the target equal to the source."""
    target.number[0] = source.number[0]
    for k in range(source.number[0]):
        copy_slot(source, k, target, k)


@jit
def insert_stage(plan: UnplacedPlan, k: int, s: int, option: int) -> None:
    """A new stage before stage `s` of slot `k`."""
    for r in range(plan.depth[k], s, -1):
        plan.options[k, r] = plan.options[k, r - 1]
    plan.options[k, s] = option
    plan.depth[k] += 1


@jit
def delete_stage(plan: UnplacedPlan, k: int, s: int) -> None:
    """Slot `k` without its stage `s`."""
    plan.depth[k] -= 1
    for r in range(s, plan.depth[k]):
        plan.options[k, r] = plan.options[k, r + 1]


@jit
def pipelines_of(plan: UnplacedPlan) -> int:
    """Replicas of all templates."""
    total = 0
    for k in range(plan.number[0]):
        total += plan.replicas[k]
    return total


@jit
def most_replicas(t: Tables, plan: UnplacedPlan, k: int) -> int:
    """How many replicas of slot `k` fit beside those of the other slots; exact as `can_pack` is.

    A TP group takes GPUs of one node, so what larger groups take counts against smaller ones.  No
    limit on GPUs is exceeded either.
    """
    most = t.batch
    taken = 0
    need = 0
    for option in range(len(t.option_tp) - 1, -1, -1):
        if option == len(t.option_tp) - 1 or t.option_type[option] != t.option_type[option + 1]:
            taken = 0
            need = 0
        tp = t.option_tp[option]
        for j in range(plan.number[0]):
            for s in range(plan.depth[j]):
                if plan.options[j, s] == option:
                    if j == k:
                        need += tp
                    else:
                        taken += tp * plan.replicas[j]
        if need:
            most = min(most, (t.room[option] - taken) // need)
        elif taken > t.room[option]:
            return -1
    for q in range(len(t.limit)):
        taken = 0
        need = 0
        for j in range(plan.number[0]):
            for s in range(plan.depth[j]):
                option = plan.options[j, s]
                if t.is_limited[q, t.option_type[option]]:
                    if j == k:
                        need += t.option_tp[option]
                    else:
                        taken += t.option_tp[option] * plan.replicas[j]
        if need:
            most = min(most, (t.limit[q] - taken) // need)
        elif taken > t.limit[q]:
            return -1
    return most
