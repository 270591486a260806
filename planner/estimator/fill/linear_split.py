"""Splits of identical blocks over stages whose seconds are linear in their number of blocks.

A split is worth keeping if none other is better in both bottleneck tau and sum: (M - 1) tau + sum
is what a replica takes, and M is known only later.  For a given tau the cheapest split gives blocks
to the fastest stages first, which is exact for a linear cost with a cap on each stage.
Invariant: equal to an enumeration of all splits (`tests/oracle`).
Source: Heddle, section 5.3 (fill).
"""

from __future__ import annotations

import math

from planner.estimator.jit import jit
from planner.estimator.tables import Floats, Ints

ROUNDING = 1e-9  # of a block, when seconds are turned into a number of blocks


@jit
def cheapest(
    order: Ints,
    block_s: Floats,
    fixed_s: Floats,
    caps: Ints,
    depth: int,
    layers: int,
    tau_s: float,
    out: Ints,
) -> float:
    """Sum of the cheapest split within tau, its blocks in `out`; infinite if there is none."""
    left = layers - depth
    total_s = 0.0
    for i in range(depth):
        s = order[i]
        most = caps[s]
        if tau_s < math.inf:
            most = min(most, int((tau_s - fixed_s[s]) / block_s[s] + ROUNDING))
        if most < 1:
            return math.inf
        out[s] = 1 + min(left, most - 1)
        left -= out[s] - 1
        total_s += fixed_s[s] + out[s] * block_s[s]
    return total_s if left == 0 else math.inf


@jit
def least_bottleneck(
    block_s: Floats, fixed_s: Floats, caps: Ints, depth: int, layers: int, out: Ints
) -> float:
    """The smallest tau of any split; infinite if the caps are too small."""
    held = 0
    tau_s = 0.0
    rate = 0.0
    offset = 0.0
    for s in range(depth):
        if caps[s] < 1:
            return math.inf
        held += caps[s]
        tau_s = max(tau_s, fixed_s[s] + block_s[s])
        rate += 1 / block_s[s]
        offset += fixed_s[s] / block_s[s]
    if held < layers or layers < depth:
        return math.inf
    tau_s = max(tau_s, (layers + offset) / rate)  # no split of whole blocks is below the real one
    left = layers
    for s in range(depth):
        out[s] = min(caps[s], max(1, int((tau_s - fixed_s[s]) / block_s[s] + ROUNDING)))
        left -= out[s]
    while left > 0:
        best = -1
        best_s = math.inf
        for s in range(depth):
            if out[s] < caps[s]:
                next_s = fixed_s[s] + (out[s] + 1) * block_s[s]
                if next_s < best_s:
                    best, best_s = s, next_s
        out[best] += 1
        tau_s = max(tau_s, best_s)
        left -= 1
    return tau_s


@jit
def sort_by_speed(block_s: Floats, depth: int, order: Ints) -> None:
    """Stages by seconds of a block, ascending; ties keep their order."""
    for i in range(depth):
        j = i
        while j > 0 and block_s[order[j - 1]] > block_s[i]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


@jit
def linear_splits(
    block_s: Floats,
    fixed_s: Floats,
    caps: Ints,
    depth: int,
    layers: int,
    least_micro_batches: int,
    order: Ints,
    trial: Ints,
    out: Ints,
    out_tau_s: Floats,
    out_sum_s: Floats,
) -> int:
    """Splits that are best for some M of at least `least_micro_batches`, by tau ascending.

    Args:
        block_s: [D] seconds of a block.
        fixed_s: [D] seconds of all else.
        caps: [D] most blocks.
        depth: D.
        layers: L.
        least_micro_batches: with fewer, a split with a larger tau is not looked for.
        order: [D] for the function's own use, as `trial`.
        trial: [D].
        out: [F, D] blocks of each split found.
        out_tau_s: [F] its bottleneck.
        out_sum_s: [F] its sum.

    Returns:
        Their number, at most F; those with the smallest tau if there are more.
    """
    tau_s = least_bottleneck(block_s, fixed_s, caps, depth, layers, trial)
    if tau_s == math.inf:
        return 0
    sort_by_speed(block_s, depth, order)
    floor_s = cheapest(order, block_s, fixed_s, caps, depth, layers, math.inf, trial)
    tiny_s = 1e-12 * floor_s
    count = 0
    while True:
        total_s = cheapest(order, block_s, fixed_s, caps, depth, layers, tau_s, trial)
        if count == 0 or total_s < out_sum_s[count - 1] - tiny_s:
            out_tau_s[count] = 0.0
            for s in range(depth):
                out[count, s] = trial[s]
                out_tau_s[count] = max(out_tau_s[count], fixed_s[s] + trial[s] * block_s[s])
            out_sum_s[count] = total_s
            count += 1
            if count == len(out_sum_s):
                return count
        slowest = 0.0  # of the stages that could give a block away
        for s in range(depth):
            if trial[s] > 1:
                slowest = max(slowest, block_s[s])
        next_s = math.inf
        for s in range(depth):
            if trial[s] < caps[s] and block_s[s] < slowest * (1 - 1e-12):
                held = int((tau_s - fixed_s[s]) / block_s[s] + ROUNDING)
                if held < caps[s]:
                    next_s = min(next_s, fixed_s[s] + (held + 1) * block_s[s])
        if next_s == math.inf:
            return count
        tau_s = next_s
        gain_s = out_sum_s[0] - floor_s
        if (least_micro_batches - 1) * (tau_s - out_tau_s[0]) >= gain_s - tiny_s:
            return count
