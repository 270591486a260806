"""The fill of a template whose GPUs may hold only so many bytes of gradients.

Where a slow NIC sums the gradients of all, a stage that holds much delays everybody; a split that
is a little slower but more even may then be the better one.
Invariant: with no bound, the splits are those of `filling`.
Source: Heddle, sections 5.2 (gradient synchronisation) and 5.3 (fill).
"""

from __future__ import annotations

import math

from planner.kernel.filling import Bench, Fillings, can_tile, stage_rows
from planner.kernel.general_split import general_splits
from planner.kernel.jit import jit
from planner.kernel.linear_split import linear_splits
from planner.kernel.stage import block_cap, fixed_seconds
from planner.kernel.tables import Ints, Tables


@jit
def fill_within(
    t: Tables,
    options: Ints,
    depth: int,
    replicas: int,
    least_micro_batches: int,
    size: int,
    per_size: int,
    most_blocks: Ints,
    bench: Bench,
    out: Fillings,
) -> None:
    """Append the fillings with one micro-batch size and at most so many blocks in a stage.

    Args:
        t: what it prices with.
        options: [D].
        depth: D.
        replicas: of the template.
        least_micro_batches: as `linear_splits` takes it.
        size: index of the micro-batch size.
        per_size: fillings, at most.
        most_blocks: [O, 2, 2] of a stage, by whether it is the first and whether the last.
        bench: to work in.
        out: takes the fillings.
    """
    start = out.count[0]
    stop = min(start + per_size, len(out.size))
    most = t.batch // t.sizes[size]
    if start == stop or most < 1 or depth > t.layers:
        return
    is_linear = t.dense == 0
    for s in range(depth):
        is_linear = is_linear and t.variants[options[s]] == 1
        if t.ends_s[options[s], size, 0] == math.inf:
            return
    fixed_seconds(t, options, depth, size, bench.fixed_s)
    held = 0
    for s in range(depth):
        option = options[s]
        is_first = 1 if s == 0 else 0
        is_last = 1 if s == depth - 1 else 0
        in_flight = min(most, depth - s)
        bound = most_blocks[option, is_first, is_last]
        held += bound
        if bound < 1:
            return
        if is_linear:
            bench.block_s[s] = t.block_s[option, size, 0, 1]
            cap = 0
            if bench.block_s[s] < math.inf and can_tile(t, option, 0, replicas):
                cap = block_cap(t, option, size, 0, in_flight, is_first, is_last, replicas, 0)
            bench.caps[s] = min(cap, bound)
        else:
            rows = bench.rows[s]
            dense = t.dense if s == 0 else max(0, t.dense - s)
            stage_rows(
                t,
                option,
                size,
                in_flight,
                is_first,
                is_last,
                replicas,
                bench.fixed_s[s],
                dense,
                rows,
            )
            for first in range(dense + 1):
                for others in range(max(0, bound - first) + 1, t.layers + 1):
                    rows[first, others] = math.inf
    if held < t.layers:
        return
    if is_linear:
        count = linear_splits(
            bench.block_s,
            bench.fixed_s,
            bench.caps,
            depth,
            t.layers,
            least_micro_batches,
            bench.order,
            bench.trial,
            out.blocks[start:stop],
            out.tau_s[start:stop],
            out.sum_s[start:stop],
        )
    else:
        count = general_splits(
            bench.rows,
            depth,
            t.dense,
            t.layers,
            least_micro_batches,
            bench.best,
            bench.came,
            bench.trial,
            out.blocks[start:stop],
            out.tau_s[start:stop],
            out.sum_s[start:stop],
        )
    for f in range(start, start + count):
        out.size[f] = size
        out.most[f] = most
    out.count[0] = start + count
