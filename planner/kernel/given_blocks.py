"""A template whose split is given: where its stages stand, and how long they take.

Source: Heddle, section 5.3 (fill).   Legend: D stages.
"""

from __future__ import annotations

import math

from planner.kernel.bench import Bench
from planner.kernel.filling import Fillings, variant_of
from planner.kernel.jit import jit
from planner.kernel.stage import fixed_seconds
from planner.kernel.tables import Ints, Tables
from planner.kernel.zones import Zones, zone_seconds


@jit
def keeps_to(t: Tables, zones: Zones, depth: int, options: Ints, blocks: Ints) -> bool:
    """Whether all stages stand in their zones and sum their gradients in time."""
    start = 0
    for s in range(depth):
        stop = start + blocks[s]
        if zone_seconds(zones, options[s], start, stop, t.layers) == math.inf:
            return False
        start = stop
    return True


@jit
def fill_as(
    t: Tables,
    depth: int,
    options: Ints,
    blocks: Ints,
    replicas: int,
    bench: Bench,
    out: Fillings,
) -> None:
    """Append the fillings with these blocks: one of each micro-batch size that memory allows."""
    for size in range(len(t.sizes)):
        most = t.batch // t.sizes[size]
        row = out.number[0]
        if most < 1 or row == len(out.size):
            continue
        fixed_seconds(t, options, depth, size, bench.fixed_s)
        start = 0
        tau_s = 0.0
        sum_s = 0.0
        for s in range(depth):
            dense = max(0, min(start + blocks[s], t.dense) - start)
            others = blocks[s] - dense
            variant = variant_of(
                t,
                options[s],
                size,
                min(most, depth - s),
                1 if s == 0 else 0,
                1 if s == depth - 1 else 0,
                replicas,
                dense,
                others,
            )
            if variant < 0:
                sum_s = math.inf
                break
            seconds = bench.fixed_s[s] + others * t.block_s[options[s], size, variant, 1]
            if dense:
                seconds += dense * t.block_s[options[s], size, variant, 0]
            tau_s = max(tau_s, seconds)
            sum_s += seconds
            start += blocks[s]
        if sum_s < math.inf:
            out.size[row] = size
            out.tau_s[row] = tau_s
            out.sum_s[row] = sum_s
            out.most[row] = most
            for s in range(depth):
                out.blocks[row, s] = blocks[s]
            out.number[0] = row + 1
