"""Splits over stages whose seconds are any growing function of the blocks that they hold.

Blocks of two kinds, and stages that change to a cheaper-in-memory variant as they fill up, leave
the linear case.  Within a bottleneck tau each stage covers at most so much: what is covered before
it lies in a window, that greedy walks from both ends find.  The smallest tau is bisected by such
walks, the smallest sum within a tau comes from a dynamic programme over (stage, blocks covered).
Invariant: equal to an enumeration of all splits (`tests/oracle`), and to `linear_split` where that
applies.
Source: Heddle, section 5.3 (fill).
"""

from __future__ import annotations

import math
import sys

import numpy as np

from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Floats, Ints
from planner.estimator.unplaced_plan import UnplacedPlan
from planner.estimator.workspace import Workspace

SMALL, FAR = 16, 2.0
SLOWEST_S = sys.float_info.max  # any time that is not infinite


@jit
def cost_of(rows: Floats, dense: int, s: int, start: int, stop: int) -> float:
    """Seconds of a stage that holds the blocks from `start` to `stop`."""
    first = min(stop, dense) - min(start, dense)
    return rows[s, first, stop - start - first]


@jit
def reach_far(
    rows: Floats, depth: int, dense: int, layers: int, tau_s: float, most: Ints
) -> tuple[bool, float]:
    """Fill `most` with what the first stages cover at most within tau.

    What they can cover is always a run of numbers, from `fewest` to `most`: a stage that cannot
    hold a single block of one kind begins among those of the other.

    Returns whether all blocks can be covered, and if so the smallest tau with which the walk is
    this one; else the smallest with which it is another, infinite if there is none.
    """
    most[0] = 0
    fewest = 0
    taken_s, refused_s = 0.0, math.inf
    for s in range(depth):
        start = most[s]
        other_s = rows[s, 0, 1]
        dense_s = rows[s, 1, 0] if dense else other_s
        if other_s > tau_s:
            start = min(start, dense - 1)
        if dense_s > tau_s:
            fewest = max(fewest, dense)
        for one_s in (dense_s, other_s):
            if one_s > tau_s:
                refused_s = min(refused_s, one_s)
            else:
                taken_s = max(taken_s, one_s)
        if start < fewest:
            return False, refused_s
        stop = start + 1
        last = layers - (depth - s - 1)  # each stage behind needs a block
        while stop < last:
            seconds = cost_of(rows, dense, s, start, stop + 1)
            if seconds > tau_s:
                refused_s = min(refused_s, seconds)
                break
            taken_s = max(taken_s, seconds)
            stop += 1
        most[s + 1] = stop
        fewest += 1
    if most[depth] < layers:
        return False, refused_s
    return True, taken_s


@inlined
def reach_back(
    rows: Floats, depth: int, dense: int, layers: int, tau_s: float, least: Ints
) -> None:
    """Fill `least` with what the stages before must cover, so that the others cover the rest."""
    least[depth] = layers
    for s in range(depth - 1, -1, -1):
        start = least[s + 1]
        while start > s and cost_of(rows, dense, s, start - 1, least[s + 1]) <= tau_s:
            start -= 1
        least[s] = start


@inlined
def least_general_bottleneck(depth: int, dense: int, layers: int, work: Workspace) -> float:
    """The smallest tau of any split; infinite if there is none."""
    rows = work.rows
    reaches, high_s = reach_far(rows, depth, dense, layers, SLOWEST_S, work.most)
    if not reaches:
        return math.inf
    low_s = 0.0
    while low_s < high_s:
        middle_s = 0.5 * (low_s + high_s)
        if middle_s >= high_s:  # neighbours, rounded up
            middle_s = low_s
        reaches, turn_s = reach_far(rows, depth, dense, layers, middle_s, work.most)
        if reaches:
            high_s = turn_s
        else:
            low_s = turn_s
    return high_s


@inlined
def put_behind(before_s: float, stage_s: Floats, best: Floats) -> None:
    """Lower each number of `best` to the stage's seconds behind so many others, if that is less.

    A loop of its own, over unsigned numbers, so that several are compared at once.
    """
    for n in range(np.uint64(len(best))):
        best[n] = min(best[n], before_s + stage_s[n])


@jit
def cheapest_general(
    depth: int, dense: int, layers: int, tau_s: float, work: Workspace, out: Ints
) -> float:
    """Sum of the cheapest split within tau, its blocks in `out`; infinite if there is none."""
    rows, least, most, best = work.rows, work.least, work.most, work.best
    if not reach_far(rows, depth, dense, layers, tau_s, most)[0]:
        return math.inf
    reach_back(rows, depth, dense, layers, tau_s, least)
    best[0, 0] = 0.0
    for s in range(depth):
        for j in range(least[s + 1], most[s + 1] + 1):
            best[s + 1, j] = math.inf
        longest = 0  # blocks of the second kind
        while longest < layers and rows[s, 0, longest + 1] <= tau_s:
            longest += 1
        for i in range(least[s], most[s] + 1):
            if best[s, i] == math.inf:
                continue
            begin = max(i, least[s + 1] - 1) + 1
            if i >= dense:
                end = min(i + longest, most[s + 1]) + 1
                if begin < end:
                    put_behind(best[s, i], rows[s, 0, begin - i : end - i], best[s + 1, begin:end])
                continue
            for j in range(begin, most[s + 1] + 1):
                cost = cost_of(rows, dense, s, i, j)
                if cost > tau_s:
                    break
                best[s + 1, j] = min(best[s + 1, j], best[s, i] + cost)
    j = layers
    for s in range(depth - 1, -1, -1):
        i = least[s]
        while i + 1 < j:
            cost = cost_of(rows, dense, s, i, j)
            if cost <= tau_s and best[s, i] + cost == best[s + 1, j]:
                break
            i += 1
        out[s] = j - i
        j = i
    return best[depth, layers]


@jit
def bottleneck(rows: Floats, depth: int, dense: int, blocks: Ints) -> float:
    """The slowest stage of a split."""
    tau_s = 0.0
    start = 0
    for s in range(depth):
        stop = start + blocks[s]
        tau_s = max(tau_s, cost_of(rows, dense, s, start, stop))
        start = stop
    return tau_s


@jit
def general_splits(
    dense: int,
    layers: int,
    least_micro_batches: int,
    work: Workspace,
    plan: UnplacedPlan,
    k: int,
    start: int,
    stop: int,
) -> int:
    """Splits of slot `k` that are best for some M of at least so many; returns their number.

    They become its fillings from `start` on, and `stop` is not reached.  The first has the smallest
    tau; the others come by tau descending.  In models of more than `SMALL` blocks a tau beyond
    `FAR` times the smallest is not looked for.
    """
    depth, rows, trial = plan.depth[k], work.rows, work.split
    blocks, taus_s, sums_s = plan.blocks[k], plan.tau_s[k], plan.sum_s[k]
    if layers < depth:
        return 0
    least_s = least_general_bottleneck(depth, dense, layers, work)
    if least_s == math.inf:
        return 0
    sums_s[start] = cheapest_general(depth, dense, layers, least_s, work, blocks[start])
    taus_s[start] = bottleneck(rows, depth, dense, blocks[start])
    if stop - start == 1:
        return 1
    widest_s = SLOWEST_S if layers <= SMALL else FAR * taus_s[start]
    floor_s = cheapest_general(depth, dense, layers, widest_s, work, trial)
    tiny_s = 1e-12 * floor_s
    limit_s = bottleneck(rows, depth, dense, trial)
    if least_micro_batches > 1:
        gain_s = (sums_s[start] - floor_s) / (least_micro_batches - 1)
        limit_s = min(limit_s, taus_s[start] + gain_s)
    f = start + 1
    while f < stop and limit_s > taus_s[start] * (1 + 1e-12):
        total_s = cheapest_general(depth, dense, layers, limit_s, work, trial)
        if total_s >= sums_s[start] - tiny_s:
            break
        for s in range(depth):
            blocks[f, s] = trial[s]
        taus_s[f] = bottleneck(rows, depth, dense, trial)
        sums_s[f] = total_s
        limit_s = taus_s[f] * (1 - 1e-12)
        f += 1
    return f - start
