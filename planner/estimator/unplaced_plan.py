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

SLOTS = MAX_TEMPLATES


@by_reference
class Fillings(NamedTuple):
    """The fillings of one template; the first `number[0]` rows hold.

    Attributes:
        number: [1] of them.
        size: [F] index of the micro-batch size.
        tau_s: [F] bottleneck.
        sum_s: [F] sum over stages.
        most: [F] the largest M that memory allows.
        blocks: [F, D] blocks of each stage.
    """

    number: Ints
    size: Ints
    tau_s: Floats
    sum_s: Floats
    most: Ints
    blocks: Ints


def new_fillings() -> Fillings:
    """Room for the fillings of one template."""
    return Fillings(
        np.zeros(1, np.int64),
        np.zeros(MAX_FILLINGS, np.int64),
        np.zeros(MAX_FILLINGS),
        np.zeros(MAX_FILLINGS),
        np.zeros(MAX_FILLINGS, np.int64),
        np.zeros((MAX_FILLINGS, MAX_DEPTH), np.int64),
    )


@by_reference
class UnplacedPlan(NamedTuple):
    """Templates of a plan.

    Attributes:
        number: [1] of templates.
        depth: [K] stages.
        options: [K, D] option of each stage.
        replicas: [K] n.
        chosen: [K] the filling that the price took.
        pipelines: [K] replicas of the whole plan when the slot was filled.
        fillings: number, size, tau, sum, most and blocks of the fillings of each slot, [K, ...].
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


def new_plan() -> UnplacedPlan:
    """An empty plan."""
    return UnplacedPlan(
        np.zeros(1, np.int64),
        np.zeros(SLOTS, np.int64),
        np.zeros((SLOTS, MAX_DEPTH), np.int64),
        np.zeros(SLOTS, np.int64),
        np.zeros(SLOTS, np.int64),
        np.zeros(SLOTS, np.int64),
        np.zeros((SLOTS, 1), np.int64),
        np.zeros((SLOTS, MAX_FILLINGS), np.int64),
        np.zeros((SLOTS, MAX_FILLINGS)),
        np.zeros((SLOTS, MAX_FILLINGS)),
        np.zeros((SLOTS, MAX_FILLINGS), np.int64),
        np.zeros((SLOTS, MAX_FILLINGS, MAX_DEPTH), np.int64),
    )


@inlined
def fillings_of(plan: UnplacedPlan, k: int) -> Fillings:
    """The fillings of one slot, as a view."""
    fillings: Fillings = reference_to(
        Fillings(
            plan.filling_count[k],
            plan.size[k],
            plan.tau_s[k],
            plan.sum_s[k],
            plan.most[k],
            plan.blocks[k],
        )
    )
    return fillings


@jit
def copy_slot(source: UnplacedPlan, k: int, target: UnplacedPlan, j: int) -> None:
    """Make slot `j` of the target equal to slot `k` of the source."""
    depth = source.depth[k]
    target.depth[j] = depth
    target.replicas[j] = source.replicas[k]
    target.chosen[j] = source.chosen[k]
    target.pipelines[j] = source.pipelines[k]
    target.filling_count[j, 0] = source.filling_count[k, 0]
    for s in range(depth):
        target.options[j, s] = source.options[k, s]
    for f in range(source.filling_count[k, 0]):
        target.size[j, f] = source.size[k, f]
        target.tau_s[j, f] = source.tau_s[k, f]
        target.sum_s[j, f] = source.sum_s[k, f]
        target.most[j, f] = source.most[k, f]
        for s in range(depth):
            target.blocks[j, f, s] = source.blocks[k, f, s]


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

    A TP group takes GPUs of one node, so what larger groups take counts against smaller ones.
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
    return most
