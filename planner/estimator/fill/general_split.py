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
from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Floats, Ints

SMALL, FAR = 16, 2.0
SLOWEST_S = sys.float_info.max  # any time that is not infinite


@by_reference
class SplitWorkspace(NamedTuple):
    """Arrays that a split works in, made once.

    Attributes:
        least: [D + 1] fewest blocks that the first stages may cover.
        most: [D + 1] the most.
        best: [D + 1, L + 1] smallest sum of the first stages by the blocks that they cover.
    """

    least: Ints
    most: Ints
    best: Floats


def new_split_workspace(deepest: int, layers: int) -> SplitWorkspace:
    """Room for templates of so many stages."""
    return SplitWorkspace(
        np.zeros(deepest + 1, np.int64),
        np.zeros(deepest + 1, np.int64),
        np.zeros((deepest + 1, layers + 1)),
    )


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

    Returns:
        Whether all blocks can be covered, and if so the smallest tau with which the walk is this
        one; else the smallest with which it is another, infinite if there is none.
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


@jit
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


@jit
def least_general_bottleneck(
    rows: Floats, depth: int, dense: int, layers: int, work: SplitWorkspace
) -> float:
    """The smallest tau of any split; infinite if there is none.

    Args:
        rows: [D, dense + 1, L + 1] seconds of a stage by its blocks of both kinds.
        depth: D.
        dense: blocks of the first kind, which come first.
        layers: L.
        work: for the function's own use.
    """
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
    rows: Floats, depth: int, dense: int, layers: int, tau_s: float, work: SplitWorkspace, out: Ints
) -> float:
    """Sum of the cheapest split within tau, its blocks in `out`; infinite if there is none."""
    least, most, best = work.least, work.most, work.best
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
    rows: Floats,
    depth: int,
    dense: int,
    layers: int,
    least_micro_batches: int,
    work: SplitWorkspace,
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
    least_s = least_general_bottleneck(rows, depth, dense, layers, work)
    if least_s == math.inf:
        return 0
    out_sum_s[0] = cheapest_general(rows, depth, dense, layers, least_s, work, out[0])
    out_tau_s[0] = bottleneck(rows, depth, dense, out[0])
    count = 1
    if len(out_sum_s) == 1:
        return 1
    widest_s = SLOWEST_S if layers <= SMALL else FAR * out_tau_s[0]
    floor_s = cheapest_general(rows, depth, dense, layers, widest_s, work, trial)
    tiny_s = 1e-12 * floor_s
    limit_s = bottleneck(rows, depth, dense, trial)
    if least_micro_batches > 1:
        gain_s = (out_sum_s[0] - floor_s) / (least_micro_batches - 1)
        limit_s = min(limit_s, out_tau_s[0] + gain_s)
    while count < len(out_sum_s) and limit_s > out_tau_s[0] * (1 + 1e-12):
        total_s = cheapest_general(rows, depth, dense, layers, limit_s, work, trial)
        if total_s >= out_sum_s[0] - tiny_s:
            return count
        for s in range(depth):
            out[count, s] = trial[s]
        out_tau_s[count] = bottleneck(rows, depth, dense, trial)
        out_sum_s[count] = total_s
        limit_s = out_tau_s[count] * (1 - 1e-12)
        count += 1
    return count
