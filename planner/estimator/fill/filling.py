"""The fillings of a slot, each a micro-batch, a split and variants: all wanted, or one split's.

Invariant: a filling fits in memory with up to `most` micro-batches in a replica.
Source: Heddle, section 5.3 (fill).   Legend: F fillings, D stages.
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.fill.general_split import general_splits
from planner.estimator.fill.linear_split import linear_splits
from planner.estimator.fill.stage import Slot, block_cap, blocks_seconds, fixed_seconds, slot_of
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Floats, Ints, Tables
from planner.estimator.unplaced_plan import UnplacedPlan
from planner.estimator.workspace import Workspace

PER_SIZE = 8  # splits of one micro-batch size


@jit
def stage_rows(t: Tables, slot: Slot, s: int, fixed_s: float, out: Floats) -> int:
    """Seconds of stage `s` by its blocks of both kinds, each with the fastest variant that fits.

    It takes `fixed_s` besides its blocks.  Returns how many blocks it holds at most.
    """
    option, size = slot.option, slot.size
    fits = 0
    for first in range(out.shape[0]):
        for others in range(out.shape[1]):
            out[first, others] = math.inf
    for first in range(max(0, t.dense - s) + 1):
        for variant in range(t.variants[option]):
            block_s = t.block_s[option, size, variant, 1]
            if block_s == math.inf:
                continue
            if (slot.replicas * t.option_tp[option]) % t.ways[option, variant]:
                continue  # the devices of all replicas do not make up whole tilings
            cap = block_cap(t, slot, variant, first)
            if cap >= 0:
                fits = max(fits, first + cap)
            start_s = fixed_s
            if first:
                start_s += first * t.block_s[option, size, variant, 0]
            for others in range(np.uint64(cap + 1)):
                seconds = start_s + np.int32(others) * block_s
                out[first, others] = min(out[first, others], seconds)
    out[0, 0] = math.inf
    return fits


@jit
def variant_of(t: Tables, slot: Slot, dense: int, others: int) -> int:
    """The fastest variant that fits; -1 if none does."""
    option = slot.option
    best = -1
    best_s = math.inf
    for variant in range(t.variants[option]):
        seconds = blocks_seconds(t, option, slot.size, variant, dense, others)
        if seconds >= best_s or (slot.replicas * t.option_tp[option]) % t.ways[option, variant]:
            continue
        if block_cap(t, slot, variant, dense) >= others:
            best, best_s = variant, seconds
    return best


@jit
def fill_template(
    t: Tables, plan: UnplacedPlan, k: int, pipelines: int, per_size: int, work: Workspace
) -> None:
    """Fill slot `k` in every way that a plan with so many pipelines may want.

    Micro-batches are at least half of an even share; where an even share is below the depth, so
    that fewer activations live at once, fillings for few micro-batches come on top.  Where none of
    these fits, fillings for the even share alone may.
    """
    options, depth = plan.options[k], plan.depth[k]
    plan.filling_count[k, 0] = 0
    if depth > t.layers:
        return
    is_linear = t.dense == 0
    for s in range(depth):
        is_linear = is_linear and t.variants[options[s]] == 1
    for size in range(len(t.sizes)):
        if t.sizes[size] > t.batch:
            break
        even = t.batch / (t.sizes[size] * pipelines)
        least = max(1, int(even / 2))
        few, largest = 0, t.batch // t.sizes[size]
        if even < depth:
            few = max(1, min(math.ceil(1.25 * even), depth - 1))
        fewest = max(1, math.ceil(even))
        if fewest in (few, largest) or even >= depth:
            fewest = 0
        begun = plan.filling_count[k, 0]
        for most in (few, largest, fewest):
            start = plan.filling_count[k, 0]
            stop = min(start + per_size, plan.size.shape[1])
            if most == 0 or start == stop:
                continue
            if most == fewest and start > begun:
                continue
            if not look_at_stages(t, plan, k, size, most, is_linear, work):
                continue
            if is_linear:
                count = linear_splits(t.layers, least, work, plan, k, start, stop)
            else:
                count = general_splits(t.dense, t.layers, least, work, plan, k, start, stop)
            for f in range(start, start + count):
                plan.size[k, f] = size
                plan.most[k, f] = most
            plan.filling_count[k, 0] = start + count


@inlined
def copies_beside(t: Tables, replicas: int) -> int:
    """How many copies of a stage a fill counts on beside each other: all that spread experts."""
    return replicas if t.spreads_experts else 1


@inlined
def look_at_stages(
    t: Tables,
    plan: UnplacedPlan,
    k: int,
    size: int,
    most: int,
    is_linear: bool,
    work: Workspace,
) -> bool:
    """Seconds of the stages of a slot by their blocks, for splits; whether all blocks fit."""
    options, depth, replicas = plan.options[k], plan.depth[k], plan.replicas[k]
    copies = copies_beside(t, replicas)
    fixed_seconds(t, options, depth, size, copies, t.node_gpus, work.fixed_s)
    held = 0
    for s in range(depth):
        option = options[s]
        slot = slot_of(option, size, s, depth, most, replicas)
        fits = 0
        has_entry = t.ends_s[option, size, 0] < math.inf
        if has_entry and is_linear:
            variant = t.variants[option] - 1  # the only one
            work.block_s[s] = t.block_s[option, size, variant, 1]
            if work.block_s[s] < math.inf:
                fits = block_cap(t, slot, variant, t.dense)
            work.caps[s] = fits
        elif has_entry:
            fits = stage_rows(t, slot, s, work.fixed_s[s], work.rows[s])
        if fits < 1:
            return False
        held += fits
    return held >= t.layers


@inlined
def split_seconds(
    t: Tables, plan: UnplacedPlan, k: int, blocks: Ints, size: int, most: int, fixed_s: Floats
) -> tuple[float, float]:
    """The bottleneck of a split of slot `k`, and the sum; infinite if a stage is too large.

    Each stage has its fastest variant that fits with `most` micro-batches.
    """
    depth = plan.depth[k]
    start = 0
    tau_s = 0.0
    sum_s = 0.0
    for s in range(depth):
        option = plan.options[k, s]
        dense = max(0, min(start + blocks[s], t.dense) - start)
        others = blocks[s] - dense
        start += blocks[s]
        slot = slot_of(option, size, s, depth, most, plan.replicas[k])
        variant = variant_of(t, slot, dense, others)
        if variant < 0:
            tau_s = sum_s = math.inf
            break
        seconds = fixed_s[s] + blocks_seconds(t, option, size, variant, dense, others)
        tau_s = max(tau_s, seconds)
        sum_s += seconds
    return tau_s, sum_s


@jit
def fill_as(t: Tables, plan: UnplacedPlan, k: int, blocks: Ints, work: Workspace) -> bool:
    """Fill slot `k` with this split as well, by micro-batch sizes; whether one is new."""
    before = plan.filling_count[k, 0]
    for size in range(len(t.sizes)):
        most = t.batch // t.sizes[size]
        row = plan.filling_count[k, 0]
        if most < 1 or row == plan.size.shape[1]:
            continue
        copies = copies_beside(t, plan.replicas[k])
        fixed_seconds(t, plan.options[k], plan.depth[k], size, copies, t.node_gpus, work.fixed_s)
        tau_s, sum_s = split_seconds(t, plan, k, blocks, size, most, work.fixed_s)
        is_known = sum_s == math.inf
        for f in range(row):
            is_known = is_known or (
                plan.size[k, f] == size
                and plan.tau_s[k, f] == tau_s
                and plan.sum_s[k, f] == sum_s
                and plan.most[k, f] == most
            )
        if is_known:
            continue
        plan.filling_count[k, 0] = row + 1
        plan.size[k, row] = size
        plan.most[k, row] = most
        plan.tau_s[k, row] = tau_s
        plan.sum_s[k, row] = sum_s
        for s in range(plan.depth[k]):
            plan.blocks[k, row, s] = blocks[s]
    return plan.filling_count[k, 0] > before
