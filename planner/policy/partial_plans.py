"""Partial plans of many episodes at once: what is left, what may be chosen next, what it is like.

Invariants: a choice that a mask keeps can be packed; every mask of a row that is still built keeps
at least one choice.
Source: Heddle, section 5.1 (feasibility masking), Table 2.
Legend: R episodes, T templates, D stages, C node classes, K TP degrees, O options, F features.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Floats, Ints
from planner.estimator.unplaced_plan import UnplacedPlan, new_plan
from planner.policy.features import ActionSpace
from planner.policy.gpus_left import gpus_left, replicas_with, stages_left, stages_with
from planner.policy.schema import (
    OF_DEGREE_BATCH,
    OF_DEGREE_LEFT,
    OF_DEVICE_BATCH,
    OF_DEVICE_LEFT,
    OF_STAGE,
    OF_STAGE_BATCH,
    Array,
    Bools,
)

Templates: TypeAlias = tuple[tuple[int, ...], ...]  # for each the option of each stage, in order


@by_reference
class PartialPlans(NamedTuple):
    """The plans so far of R episodes on one composition."""

    # the closed templates, a `UnplacedPlan` with a row [R, ...] for each episode; the open
    # template's depth and options follow them
    plans: UnplacedPlan
    taken: Ints  # [R, O] GPUs that closed templates take, by option
    used: Ints  # [R, O] stages of the open template, by option
    stage: Ints  # [R] stages of the open template that are placed
    seconds: Floats  # [R] an iteration of the plan so far; infinite without one
    ended: Ints  # [R] 1: nothing is added any more


def new_partial_plans(rows: int, options: int) -> PartialPlans:
    """Episodes before their first choice."""
    return PartialPlans(
        new_plan(rows),
        np.zeros((rows, options), np.int64),
        np.zeros((rows, options), np.int64),
        np.zeros(rows, np.int64),
        np.full(rows, np.inf),
        np.zeros(rows, np.int64),
    )


@jit
def resonance(replicas: float) -> float:
    """How far a number of replicas is above the power of two below it, in octaves."""
    exponent = math.log2(max(1.0, replicas))
    return exponent - math.floor(exponent)


@jit
def sync_share(sync_samples: float, batch: int, replicas: int) -> float:
    """Share of a block's seconds in an iteration that its gradient sum would take."""
    if replicas < 2:
        return 0.0
    return sync_samples / (sync_samples + batch / replicas)


@jit
def observe_states(
    m: ActionSpace, d: PartialPlans, rows: Ints, t_max: int, left: Ints, out: Array
) -> None:
    """The state of Table 2 of each of these rows: out [R, S], its static features already there."""
    degrees = (len(m.state) - 7 - 6 * len(m.type_gpus)) // (4 * len(m.type_gpus))
    width = 6 + 4 * degrees
    for i in range(len(rows)):
        r = rows[i]
        total = gpus_left(m, d.taken[r], d.used[r], left)
        for c in range(len(m.class_type)):
            start, stop = m.first_option[c], m.first_option[c + 1]
            at = m.class_type[c] * width
            gpus = m.type_gpus[m.class_type[c]]
            if stop == start:
                continue
            out[i, at] += left[start] / gpus
            out[i, at + 1] += left[stop - 1] / gpus
            for o in range(start, stop):
                groups = left[o] // m.tp[o]
                out[i, at + 6 + 3 * degrees + m.degree[o]] += math.log2(1 + groups) / 12
        at = width * len(m.type_gpus)
        out[i, at + 1] = d.plans.number[r, 0] / t_max
        if m.sees_batch:
            pipelines = 0
            for k in range(d.plans.number[r, 0]):
                pipelines += d.plans.replicas[r, k]
            out[i, at + 2] = math.log2(m.batch) / 16
            out[i, at + 3] = math.log2(m.batch / m.gpus) / 12
            out[i, at + 4] = math.log2(1 + pipelines) / 10
            out[i, at + 5] = math.log2(m.batch / max(1, pipelines)) / 16
            out[i, at + 6] = total / m.gpus


@jit
def observe_depths(
    m: ActionSpace, d: PartialPlans, rows: Ints, left: Ints, out: Array, mask: Bools
) -> None:
    """Features and mask of STOP (0) and every depth: out [R, D + 1, F], mask [R, D + 1]."""
    for i in range(len(rows)):
        r = rows[i]
        total = gpus_left(m, d.taken[r], d.used[r], left)
        stages = stages_left(m, d.taken[r], d.used[r], left)
        number = d.plans.number[r, 0]
        before = d.plans.depth[r, number - 1] if number else 0
        mask[i, 0] = number > 0
        for depth in range(m.d_max + 1):
            row = out[i, depth]
            row[depth] = 1.0
            at = m.d_max + 1
            if depth == 0:
                row[at] = total / m.gpus
                continue
            mask[i, depth] = depth <= min(stages, m.deepest)
            replicas = max(1.0, total / depth)
            row[at] = depth / m.layers
            row[at + 1] = math.log2(replicas) / 12
            row[at + 2] = 1.0 if depth == before else 0.0
            row[at + 3] = number / 8
            if m.sees_batch:
                whole = math.floor(replicas)
                share = m.batch / whole
                row[at + 4] = resonance(whole)
                row[at + 5] = math.log2(share) / 16
                row[at + 6] = 1.0 if m.batch % whole == 0 else 0.0
                row[at + 7] = (depth - 1) / (depth - 1 + share)


@jit
def observe_stages(
    m: ActionSpace,
    d: PartialPlans,
    rows: Ints,
    left: Ints,
    context: Array,
    device: Array,
    degree: Array,
    mask: Bools,
) -> None:
    """Features and mask [R, C, K] of the next stage of each of these rows.

    `context` [R, F] is of what is placed; `device` [R, C, F] and `degree` [R, C, K, F] hold what no
    choice changes already; `left` [O] is for the function's own use.
    """
    for i in range(len(rows)):
        r = rows[i]
        used, taken = d.used[r], d.taken[r]
        total = gpus_left(m, taken, used, left)
        stages = stages_left(m, taken, used, left)
        to_come = d.plans.depth[r, d.plans.number[r, 0]] - d.stage[r] - 1
        replicas = m.batch
        for c in range(len(m.class_type)):
            replicas = min(replicas, replicas_with(m, taken, used, c, -1))
        observe_template(m, d, r, total, replicas, context[i])
        for c in range(len(m.class_type)):
            start, stop = m.first_option[c], m.first_option[c + 1]
            if stop > start:
                observe_class(m, d, r, c, replicas, left, device[i, c])
            for o in range(start, stop):
                k = m.degree[o]
                beside = stages_with(m, taken, used, o, stages, left)
                mask[i, c, k] = left[o] >= m.tp[o] and beside >= to_come
                observe_option(m, d, r, o, replicas, left, degree[i, c, k])


@inlined
def observe_template(
    m: ActionSpace, d: PartialPlans, r: int, total: int, replicas: int, out: Array
) -> None:
    """Features [F] of the open template of a row, which could have so many replicas as it is."""
    number = d.plans.number[r, 0]
    depth = d.plans.depth[r, number]
    j = d.stage[r]
    speed = 0.0
    held = 0.0
    for s in range(j):
        o = d.plans.options[r, number, s]
        speed += m.speed[o]
        held += 1.0 / (m.state_share[o] + (depth - s) * m.kept_share[o] + 1e-6)
    out[0] = depth / m.d_max
    out[1] = (depth - j) / depth
    out[2] = (depth - j) / 24
    out[3] = math.log2(1 + max(0, replicas)) / 12
    out[4] = speed / depth
    out[5] = min(2.0, held / m.layers)
    out[6] = min(1.0, max(0.0, m.layers - held) / (depth - j) / m.layers)
    out[7] = 1.0 if j == 0 else 0.0
    out[8] = 1.0 if j == depth - 1 else 0.0
    out[9] = math.log2(max(1.0, total / (depth - j))) / 12
    if m.sees_batch:
        out[10] = math.log2(m.batch / max(1, replicas)) / 16
        out[11] = resonance(replicas)
    if j:
        last = d.plans.options[r, number, j - 1]
        at = OF_STAGE + OF_STAGE_BATCH
        out[at + m.class_type[m.option_class[last]]] = 1.0
        out[at + len(m.type_gpus) + m.degree[last]] = 1.0


@inlined
def observe_class(
    m: ActionSpace, d: PartialPlans, r: int, c: int, replicas: int, left: Ints, out: Array
) -> None:
    """Features [F] of a node class for the next stage, without which `replicas` are possible."""
    number, j = d.plans.number[r, 0], d.stage[r]
    depth = d.plans.depth[r, number]
    start, stop = m.first_option[c], m.first_option[c + 1]
    on_it = 0
    for o in range(start, stop):
        on_it += d.used[r, o]
    fits = min(replicas, replicas_with(m, d.taken[r], d.used[r], c, start))
    at = len(out) - OF_DEVICE_LEFT - OF_DEVICE_BATCH
    out[at] = left[start] / m.gpus
    out[at + 1] = math.log2(1 + left[start]) / 12
    out[at + 2] = min(1.0, left[start] / (4.0 * (depth - j)))
    out[at + 3] = math.log2(1 + max(0, fits)) / 12
    is_before = j and m.option_class[d.plans.options[r, number, j - 1]] == c
    out[at + 4] = 1.0 if is_before else 0.0
    out[at + 5] = on_it / depth
    if m.sees_batch:
        out[at + 6] = fits / replicas if replicas else 0.0
        out[at + 7] = resonance(fits)
        out[at + 8] = sync_share(m.sync_samples[start], m.batch, fits)


@inlined
def observe_option(
    m: ActionSpace, d: PartialPlans, r: int, o: int, replicas: int, left: Ints, out: Array
) -> None:
    """Features [F] of an option for the next stage, as `observe_class` has them of its class."""
    number, j = d.plans.number[r, 0], d.stage[r]
    depth = d.plans.depth[r, number]
    used = d.used[r]
    fits = min(replicas, replicas_with(m, d.taken[r], used, m.option_class[o], o))
    at = len(out) - OF_DEGREE_LEFT - OF_DEGREE_BATCH
    out[at] = math.log2(1 + left[o] // m.tp[o]) / 12
    out[at + 1] = math.log2(1 + max(0, fits)) / 12
    out[at + 2] = 1.0 if j and o == d.plans.options[r, number, j - 1] else 0.0
    out[at + 3] = used[o] / depth
    out[at + 4] = (depth - j) * (m.state_share[o] + m.kept_share[o])
    if m.sees_batch:
        out[at + 5] = fits / replicas if replicas else 0.0
        out[at + 6] = resonance(fits)
        out[at + 7] = sync_share(m.sync_samples[o], m.batch, fits)


@jit
def open_templates(d: PartialPlans, rows: Ints, depths: Ints) -> None:
    """Start a template of that depth in each row; 0 ends the row."""
    for i in range(len(rows)):
        r = rows[i]
        if depths[i] == 0:
            d.ended[r] = 1
        else:
            d.plans.depth[r, d.plans.number[r, 0]] = depths[i]
            d.stage[r] = 0
            d.used[r] = 0


@jit
def place_stages(d: PartialPlans, rows: Ints, options: Ints) -> None:
    """Give the next stage of each row an option."""
    for i in range(len(rows)):
        r = rows[i]
        d.plans.options[r, d.plans.number[r, 0], d.stage[r]] = options[i]
        d.used[r, options[i]] += 1
        d.stage[r] += 1
