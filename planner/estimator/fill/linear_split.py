"""Splits of identical blocks over stages whose seconds are linear in their number of blocks.

A split is worth keeping if none other is better in both bottleneck tau and sum: (M - 1) tau + sum
is what a replica takes, and M is known only later.  For a given tau the cheapest split gives blocks
to the fastest stages first, which is exact for a linear cost with a cap on each stage.
Invariant: equal to an enumeration of all splits (`tests/oracle`).
Source: Heddle, section 5.3 (fill).
"""

from __future__ import annotations

import math

from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Floats, Ints
from planner.estimator.unplaced_plan import UnplacedPlan
from planner.estimator.workspace import Workspace

ROUNDING = 1e-9  # of a block, when seconds are turned into a number of blocks


@jit
def cheapest(work: Workspace, depth: int, layers: int, tau_s: float, out: Ints) -> float:
    """Sum of the cheapest split within tau, its blocks in `out`; infinite if there is none."""
    order, block_s, fixed_s, caps = work.order, work.block_s, work.fixed_s, work.caps
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


@inlined
def least_bottleneck(work: Workspace, depth: int, layers: int, out: Ints) -> float:
    """The smallest tau of any split; infinite if the caps are too small."""
    block_s, fixed_s, caps = work.block_s, work.fixed_s, work.caps
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


@inlined
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
    layers: int,
    least_micro_batches: int,
    work: Workspace,
    plan: UnplacedPlan,
    k: int,
    start: int,
    stop: int,
) -> int:
    """Splits of slot `k` that are best for some M of at least so many; returns their number.

    They become its fillings from `start` on, by tau ascending; if there are more than fit before
    `stop`, those with the smallest tau.  The workspace holds [D] seconds of a block and of all
    else, and the most blocks.
    """
    depth, trial = plan.depth[k], work.split
    block_s, fixed_s, caps = work.block_s, work.fixed_s, work.caps
    blocks, taus_s, sums_s = plan.blocks[k], plan.tau_s[k], plan.sum_s[k]
    tau_s = least_bottleneck(work, depth, layers, trial)
    if tau_s == math.inf:
        return 0
    sort_by_speed(block_s, depth, work.order)
    floor_s = cheapest(work, depth, layers, math.inf, trial)
    tiny_s = 1e-12 * floor_s
    f = start
    while True:
        total_s = cheapest(work, depth, layers, tau_s, trial)
        if f == start or total_s < sums_s[f - 1] - tiny_s:
            taus_s[f] = 0.0
            for s in range(depth):
                blocks[f, s] = trial[s]
                taus_s[f] = max(taus_s[f], fixed_s[s] + trial[s] * block_s[s])
            sums_s[f] = total_s
            f += 1
            if f == stop:
                break
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
            break
        tau_s = next_s
        gain_s = sums_s[start] - floor_s
        if (least_micro_batches - 1) * (tau_s - taus_s[start]) >= gain_s - tiny_s:
            break
    return f - start
