"""Every way to fill one template that some plan could want: micro-batch, blocks and variants.

Invariant: a filling fits in memory with up to `most` micro-batches in a replica.
Source: Heddle, section 5.3 (fill).   Legend: F fillings, D stages.
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.bag import Fillings
from planner.estimator.bench import Bench
from planner.estimator.fill.general_split import general_splits
from planner.estimator.fill.linear_split import linear_splits
from planner.estimator.fill.stage import block_cap, fixed_seconds
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Floats, Ints, Tables

PER_SIZE = 8  # splits of one micro-batch size


@jit
def stage_rows(
    t: Tables,
    options: Ints,
    start: int,
    stop: int,
    depth: int,
    replicas: int,
    size: int,
    most: int,
    fixed_s: Floats,
    rows: Floats,
) -> int:
    """Seconds of stages by their blocks of both kinds, each with the fastest variant that fits.

    All in one call: to hand over the tables takes longer than a stage.

    Args:
        t: what it prices with.
        options: [D] of the stages from `start` on.
        start: position of the first of them in its template.
        stop: one behind the last.
        depth: of the template.
        replicas: of the template, for tilings and ZeRO.
        size: index of the micro-batch size.
        most: micro-batches of a replica.
        fixed_s: [D] what the stages take besides their blocks.
        rows: [D, dense + 1, L + 1] takes the seconds.

    Returns:
        How many blocks they hold at most; 0 as soon as one of them holds none.
    """
    held = 0
    for s in range(start, stop):
        i = s - start
        option = options[i]
        ends = (2 if s == 0 else 0) + (1 if s == depth - 1 else 0)
        fits = 0
        for first in range(rows.shape[1]):
            for others in range(rows.shape[2]):
                rows[i, first, others] = math.inf
        for first in range(max(0, t.dense - s) + 1):
            for variant in range(t.variants[option]):
                block_s = t.block_s[option, size, variant, 1]
                if block_s == math.inf:
                    continue
                if (replicas * t.option_tp[option]) % t.ways[option, variant]:
                    continue  # the devices of all replicas do not make up whole tilings
                cap = -2
                if t.zero == 0:
                    cap = t.caps[option, size, variant, min(most, depth - s), ends, first]
                if cap == -2:  # looked up above: to call takes longer
                    cap = block_cap(
                        t,
                        option,
                        size,
                        variant,
                        min(most, depth - s),
                        1 if s == 0 else 0,
                        1 if s == depth - 1 else 0,
                        replicas,
                        first,
                    )
                if cap >= 0:
                    fits = max(fits, first + cap)
                start_s = fixed_s[i]
                if first:
                    start_s += first * t.block_s[option, size, variant, 0]
                for others in range(np.uint64(cap + 1)):
                    seconds = start_s + np.int32(others) * block_s
                    rows[i, first, others] = min(rows[i, first, others], seconds)
        rows[i, 0, 0] = math.inf
        if fits < 1:
            return 0
        held += fits
    return held


@inlined
def variant_of(
    t: Tables,
    option: int,
    size: int,
    in_flight: int,
    is_first: int,
    is_last: int,
    replicas: int,
    dense: int,
    others: int,
) -> int:
    """The fastest variant that fits; -1 if none does."""
    best = -1
    best_s = math.inf
    for variant in range(t.variants[option]):
        seconds = others * t.block_s[option, size, variant, 1]
        if dense:
            seconds += dense * t.block_s[option, size, variant, 0]
        if seconds >= best_s or (replicas * t.option_tp[option]) % t.ways[option, variant]:
            continue
        cap = -2
        if t.zero == 0:
            cap = t.caps[option, size, variant, in_flight, 2 * is_first + is_last, dense]
        if cap == -2:  # looked up above: to call takes longer
            cap = block_cap(t, option, size, variant, in_flight, is_first, is_last, replicas, dense)
        if cap >= others:
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
    bench: Bench,
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
            held = 0  # blocks that fit into memory
            for s in range(depth if most and start < stop else 0):
                option = options[s]
                if t.ends_s[option, size, 0] == math.inf:
                    held = 0
                    break
                if not is_linear:
                    held = t.layers
                    continue
                cap = 0
                bench.block_s[s] = t.block_s[option, size, 0, 1]
                if bench.block_s[s] < math.inf:
                    ends = (2 if s == 0 else 0) + (1 if s == depth - 1 else 0)
                    cap = -2 if t.zero else t.caps[option, size, 0, min(most, depth - s), ends, 0]
                if cap == -2:  # looked up above: to call takes longer
                    cap = block_cap(
                        t,
                        option,
                        size,
                        0,
                        min(most, depth - s),
                        1 if s == 0 else 0,
                        1 if s == depth - 1 else 0,
                        replicas,
                        0,
                    )
                bench.caps[s] = cap
                held += cap
                if cap < 1:
                    held = 0
                    break
            if held < t.layers:
                continue
            fixed_seconds(t, options, depth, size, t.spreads_experts == 1, bench.fixed_s)
            if is_linear:
                count = linear_splits(
                    bench.block_s,
                    bench.fixed_s,
                    bench.caps,
                    depth,
                    t.layers,
                    least,
                    bench.order,
                    bench.trial,
                    out.blocks[start:stop],
                    out.tau_s[start:stop],
                    out.sum_s[start:stop],
                )
            else:
                rows = bench.rows
                held = stage_rows(
                    t, options, 0, depth, depth, replicas, size, most, bench.fixed_s, rows
                )
                if held < t.layers:
                    continue
                count = general_splits(
                    rows,
                    depth,
                    t.dense,
                    t.layers,
                    least,
                    bench.splits,
                    bench.trial,
                    out.blocks[start:stop],
                    out.tau_s[start:stop],
                    out.sum_s[start:stop],
                )
            for f in range(start, start + count):
                out.size[f] = size
                out.most[f] = most
            out.number[0] = start + count
