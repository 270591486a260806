"""The decisions that Heddle's fill derives and flat-RL makes: layers, replicas, micro-batch.

A head of the network scores candidates by these features, as the heads of the structure do.
Invariant: the layers of the stages add up to the model's, at least one each.
Source: Heddle, sections 5.3 (fill) and 6.4 (flat-RL).
Legend: R episodes, A candidates, F features, D stages.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.estimator.fill.filling import fill_as
from planner.estimator.jit import jit
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import Floats, Ints, Tables
from planner.estimator.top_k import TopK
from planner.estimator.unplaced_plan import UnplacedPlan, most_replicas, plan_at
from planner.estimator.whole_plan import iteration_seconds
from planner.estimator.workspace import Workspace
from planner.policy.closing import keep_or_end
from planner.policy.features import ActionSpace
from planner.policy.gpus_left import replicas_with
from planner.policy.partial_plans import PartialPlans
from planner.policy.schema import Array, Bools

LARGEST = 4.0  # of ratios in features
LAYERS, REPLICAS, MICRO_BATCH = "layers", "replicas", "micro_batch"
WIDTHS = {LAYERS: 8, REPLICAS: 7, MICRO_BATCH: 5}  # features of a candidate


class Candidates(NamedTuple):
    """What one head may choose from."""

    features: Array  # [R, A, F]
    mask: Bools  # [R, A]


def numbers_of_candidates(space: ActionSpace, tables: Tables) -> dict[str, int]:
    """A of each head: layers from 1 to L, replicas from 1 to G, the profiled sizes."""
    most = min(space.gpus, space.batch)
    return {LAYERS: space.layers, REPLICAS: most, MICRO_BATCH: len(tables.sizes)}


def layer_choices(space: ActionSpace, plans: PartialPlans, rows: Ints) -> Candidates:
    """Layers of the stage that was placed last: the stages to come keep one each.

    The last stage takes what is left, as a split that adds up to another number is none.
    """
    k, depth, options = _open(plans, rows)
    j = plans.stage[rows] - 1
    to_come = depth - 1 - j
    earlier = np.arange(options.shape[1]) < j[:, None]
    placed = np.where(earlier, plans.plans.blocks[rows, k, 0], 0)
    left = space.layers - placed.sum(axis=1)
    layers = np.arange(1, space.layers + 1)[None, :].astype(np.float64)
    mask = (layers >= _column(np.where(to_come == 0, left, 1))) & (
        layers <= _column(left - to_come)
    )
    own = options[np.arange(len(rows)), j]
    held = space.state_share[own] + (depth - j) * space.kept_share[own]
    work = 1 / np.maximum(space.speed, 1e-6)  # of a layer on each option
    slowest = np.where(earlier, placed * work[options], 0).max(axis=1)
    even = _column(depth) / space.layers
    own_work = layers * _column(work[own])
    features = (
        layers / space.layers,
        np.minimum(LARGEST, layers * even) / LARGEST,
        np.minimum(LARGEST, layers * _column((to_come + 1) / left)) / LARGEST,
        np.minimum(LARGEST, layers * _column(held)),
        np.minimum(LARGEST, own_work * even) / LARGEST,
        np.minimum(LARGEST, own_work / np.maximum(_column(slowest), 1e-6)) / LARGEST,
        _column(space.speed[own]),
        _column(j == 0),
    )
    return Candidates(_stacked(mask.shape, features), mask)


def replica_choices(space: ActionSpace, plans: PartialPlans, rows: Ints) -> Candidates:
    """One replica to as many as there are GPUs; the mask has those that can still be packed."""
    _, depth, options = _open(plans, rows)
    most = np.empty(len(rows), np.int64)
    count_replicas(space, plans, rows, most)
    n = np.arange(1, min(space.gpus, space.batch) + 1)[None, :].astype(np.float64)
    mask = n <= _column(most)
    octaves = np.log2(n)
    ahead = _column(depth - 1)
    in_template = np.arange(options.shape[1]) < depth[:, None]
    sync = np.where(in_template, space.sync_samples[options], 0).max(axis=1)
    share = space.batch / n
    features = (
        octaves / 12,
        np.minimum(LARGEST, n / np.maximum(_column(most), 1)) / LARGEST,
        n == _column(most),
        octaves - np.floor(octaves),
        space.batch % n == 0,
        ahead / (ahead + share),
        _column(sync) / (_column(sync) + share),
    )
    return Candidates(_stacked(mask.shape, features), mask)


def micro_batch_choices(
    space: ActionSpace, tables: Tables, plans: PartialPlans, rows: Ints
) -> Candidates:
    """The profiled sizes, none larger than the batch."""
    k, depth, options = _open(plans, rows)
    stage = np.arange(options.shape[1])
    blocks = np.where(stage < depth[:, None], plans.plans.blocks[rows, k, 0], 0)
    kept = space.kept_share[options] * np.maximum(0, depth[:, None] - stage)
    sizes = tables.sizes[None, :].astype(np.float64)
    state = space.state_share[options]
    held = blocks[:, :, None] * (state[:, :, None] + kept[:, :, None] * sizes)
    share = space.batch / (_column(plans.plans.replicas[rows, k]) * sizes)
    ahead = _column(depth - 1)
    features = (
        np.log2(sizes) / 4,
        np.minimum(LARGEST, held.max(axis=1)),
        np.log2(share) / 12,
        share == np.floor(share),
        ahead / (ahead + np.maximum(1, share)),
    )
    mask = (sizes <= max(space.batch, int(tables.sizes[0]))) & np.ones((len(rows), 1), bool)
    return Candidates(_stacked(mask.shape, features), mask)


def _open(plans: PartialPlans, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """[R] slot and [R] depth of the open template of each row, and [R, D] its options."""
    k = plans.plans.number[rows, 0]
    return k, plans.plans.depth[rows, k], plans.plans.options[rows, k]


def _column(values: Floats | Ints | Bools) -> Floats:
    column: Floats = values[:, None].astype(np.float64)
    return column


def _stacked(shape: tuple[int, ...], features: tuple[Floats | Bools, ...]) -> Array:
    """[R, A, F] of features that broadcast to [R, A] each."""
    return np.stack([np.broadcast_to(one, shape) for one in features], axis=2).astype(np.float32)


@jit
def count_replicas(m: ActionSpace, d: PartialPlans, rows: Ints, out: Ints) -> None:
    """How often the open template of each of these rows fits beside the closed ones."""
    for i in range(len(rows)):
        r = rows[i]
        out[i] = m.batch
        for c in range(len(m.class_type)):
            out[i] = min(out[i], replicas_with(m, d.taken[r], d.used[r], c, -1))


@jit
def price_as_chosen(t: Tables, plan: UnplacedPlan, work: Workspace) -> float:
    """Seconds of a plan whose last template has what was chosen for it; infinite if it cannot run.

    The choices stand in the slot: replicas, and layers and micro-batch size as its first filling.
    Memory is that of a pipeline which is full.
    """
    k = plan.number[0] - 1
    size = plan.size[k, 0]
    if most_replicas(t, plan, k) < plan.replicas[k]:
        return math.inf
    plan.filling_count[k, 0] = 0
    fill_as(t, plan, k, plan.blocks[k, 0], work)
    for f in range(plan.filling_count[k, 0]):
        if plan.size[k, f] == size:
            plan.size[k, 0] = size
            plan.tau_s[k, 0] = plan.tau_s[k, f]
            plan.sum_s[k, 0] = plan.sum_s[k, f]
            plan.most[k, 0] = plan.most[k, f]
            plan.filling_count[k, 0] = 1
            return iteration_seconds(t, plan, work, math.inf)
    return math.inf


@jit
def close_as_chosen(
    t: Tables,
    limits: SearchLimits,
    d: PartialPlans,
    rows: Ints,
    t_max: int,
    work: Workspace,
    top_k: TopK,
) -> int:
    """Price the open template of each row as it was chosen; returns how many plans there were."""
    for i in range(len(rows)):
        plan = plan_at(d.plans, rows[i])
        plan.number[0] += 1
        keep_or_end(t, limits, d, rows[i], plan, price_as_chosen(t, plan, work), t_max, top_k)
    return len(rows)
