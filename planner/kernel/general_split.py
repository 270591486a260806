"""Splits over stages whose seconds are any growing function of the blocks that they hold.

Blocks of two kinds, and stages that change to a cheaper-in-memory variant as they fill up, leave
the linear case.  Two dynamic programmes over (stage, blocks covered): the smallest bottleneck, and
the smallest sum within a bottleneck.
Invariant: equal to an enumeration of all splits (`tests/oracle`), and to `linear_split` where that
applies.
Source: Heddle, section 5.3 (fill).
"""

from __future__ import annotations

import math

from planner.kernel.jit import jit
from planner.kernel.tables import Floats, Ints

SMALL, FAR = 16, 2.0


@jit
def least_general_bottleneck(
    rows: Floats, depth: int, dense: int, layers: int, best: Floats
) -> float:
    """The smallest tau of any split; infinite if there is none.

    Args:
        rows: [D, dense + 1, L + 1] seconds of a stage by its blocks of both kinds.
        depth: D.
        dense: blocks of the first kind, which come first.
        layers: L.
        best: [D + 1, L + 1] for the function's own use.
    """
    for j in range(layers + 1):
        best[0, j] = math.inf
    best[0, 0] = 0.0
    for s in range(depth):
        for j in range(layers + 1):
            best[s + 1, j] = math.inf
        after = depth - s - 1  # each stage behind needs a block
        for i in range(layers):
            if best[s, i] == math.inf:
                continue
            for j in range(i + 1, layers - after + 1):
                first = min(j, dense) - min(i, dense)
                cost = rows[s, first, j - i - first]
                if cost == math.inf:
                    break
                cost = max(cost, best[s, i])
                if cost < best[s + 1, j]:
                    best[s + 1, j] = cost
    return best[depth, layers]


@jit
def cheapest_general(
    rows: Floats,
    depth: int,
    dense: int,
    layers: int,
    tau_s: float,
    best: Floats,
    came: Ints,
    out: Ints,
) -> float:
    """Sum of the cheapest split within tau, its blocks in `out`; infinite if there is none."""
    for j in range(layers + 1):
        best[0, j] = math.inf
    best[0, 0] = 0.0
    for s in range(depth):
        for j in range(layers + 1):
            best[s + 1, j] = math.inf
        after = depth - s - 1
        for i in range(layers):
            if best[s, i] == math.inf:
                continue
            for j in range(i + 1, layers - after + 1):
                first = min(j, dense) - min(i, dense)
                cost = rows[s, first, j - i - first]
                if cost > tau_s:
                    break
                if best[s, i] + cost < best[s + 1, j]:
                    best[s + 1, j] = best[s, i] + cost
                    came[s + 1, j] = i
    if best[depth, layers] == math.inf:
        return math.inf
    j = layers
    for s in range(depth, 0, -1):
        out[s - 1] = j - came[s, j]
        j = came[s, j]
    return best[depth, layers]


@jit
def bottleneck(rows: Floats, depth: int, dense: int, blocks: Ints) -> float:
    """The slowest stage of a split."""
    tau_s = 0.0
    start = 0
    for s in range(depth):
        stop = start + blocks[s]
        first = min(stop, dense) - min(start, dense)
        tau_s = max(tau_s, rows[s, first, blocks[s] - first])
        start = stop
    return tau_s


@jit
def general_splits(
    rows: Floats,
    depth: int,
    dense: int,
    layers: int,
    least_micro_batches: int,
    best: Floats,
    came: Ints,
    trial: Ints,
    out: Ints,
    out_tau_s: Floats,
    out_sum_s: Floats,
) -> int:
    """As `linear_splits`: splits that are best for some M of at least `least_micro_batches`.

    The first has the smallest tau; the others come by tau descending.  In models of more than
    `SMALL` blocks a tau beyond `FAR` times the smallest is not looked for.
    """
    if layers < depth:
        return 0
    least_s = least_general_bottleneck(rows, depth, dense, layers, best)
    if least_s == math.inf:
        return 0
    out_sum_s[0] = cheapest_general(rows, depth, dense, layers, least_s, best, came, out[0])
    out_tau_s[0] = bottleneck(rows, depth, dense, out[0])
    count = 1
    if len(out_sum_s) == 1:
        return 1
    widest_s = math.inf if layers <= SMALL else FAR * out_tau_s[0]
    floor_s = cheapest_general(rows, depth, dense, layers, widest_s, best, came, trial)
    tiny_s = 1e-12 * floor_s
    limit_s = bottleneck(rows, depth, dense, trial)
    if least_micro_batches > 1:
        gain_s = (out_sum_s[0] - floor_s) / (least_micro_batches - 1)
        limit_s = min(limit_s, out_tau_s[0] + gain_s)
    while count < len(out_sum_s) and limit_s > out_tau_s[0] * (1 + 1e-12):
        total_s = cheapest_general(rows, depth, dense, layers, limit_s, best, came, trial)
        if total_s >= out_sum_s[0] - tiny_s:
            return count
        for s in range(depth):
            out[count, s] = trial[s]
        out_tau_s[count] = bottleneck(rows, depth, dense, trial)
        out_sum_s[count] = total_s
        limit_s = out_tau_s[count] * (1 - 1e-12)
        count += 1
    return count
