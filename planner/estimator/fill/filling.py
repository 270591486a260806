"""Every way to fill one template that some plan could want: micro-batch, blocks and variants.

Invariant: a filling fits in memory with up to `most` micro-batches in a replica.
Source: Heddle, section 5.3 (fill).   Legend: F fillings, D stages.
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.fill.general_split import general_splits
from planner.estimator.fill.linear_split import linear_splits
from planner.estimator.fill.stage import Slot, block_cap, blocks_seconds, fixed_seconds, slot_of
from planner.estimator.jit import jit
from planner.estimator.tables import Floats, Ints, Tables
from planner.estimator.unplaced_plan import Fillings
from planner.estimator.workspace import Workspace

PER_SIZE = 8  # splits of one micro-batch size


@jit
def stage_rows(t: Tables, slot: Slot, s: int, fixed_s: float, out: Floats) -> int:
    """Seconds of a stage by its blocks of both kinds, each with the fastest variant that fits.

    Args:
        t: what it prices with.
        slot: the stage.
        s: its position in its template.
        fixed_s: what the stage takes besides its blocks.
        out: [dense + 1, L + 1] takes the seconds.

    Returns:
        How many blocks it holds at most.
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
    t: Tables,
    options: Ints,
    depth: int,
    replicas: int,
    pipelines: int,
    per_size: int,
    work: Workspace,
    out: Fillings,
) -> None:
    """All fillings of a template with that many replicas in a plan with `pipelines` in all.

    Micro-batches are at least half of an even share; where an even share is below the depth, so
    that fewer activations live at once, fillings for few micro-batches come on top.
    """
    out.number[0] = 0
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
        few = 0
        if even < depth:
            few = max(1, min(math.ceil(1.25 * even), depth - 1))
        for most in (few, t.batch // t.sizes[size]):
            start = out.number[0]
            stop = min(start + per_size, len(out.size))
            if most == 0 or start == stop:
                continue
            fixed_seconds(t, options, depth, size, t.spreads_experts == 1, work.fixed_s)
            held = 0  # blocks that fit into memory
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
                    held = 0
                    break
                held += fits
            if held < t.layers:
                continue
            if is_linear:
                count = linear_splits(
                    work.block_s,
                    work.fixed_s,
                    work.caps,
                    depth,
                    t.layers,
                    least,
                    work.order,
                    work.trial,
                    out.blocks[start:stop],
                    out.tau_s[start:stop],
                    out.sum_s[start:stop],
                )
            else:
                count = general_splits(
                    work.rows,
                    depth,
                    t.dense,
                    t.layers,
                    least,
                    work.splits,
                    work.trial,
                    out.blocks[start:stop],
                    out.tau_s[start:stop],
                    out.sum_s[start:stop],
                )
            for f in range(start, start + count):
                out.size[f] = size
                out.most[f] = most
            out.number[0] = start + count
