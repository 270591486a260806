"""The pricing problem: the templates that are worth most beyond what their GPUs cost.

A replica with micro-batches of b samples trains b (1 + (T - sum t) / tau) samples in T seconds and
uses GPUs at a dual.  For a given bottleneck tau both add up over stages, so that every multiple of
replicas, micro-batch size and tau has its own shortest path.
At given prices the cheapest pipeline may ask for more GPUs of a type than there are: no plan has
it.  So what is asked beyond the room costs a multiplier, and the room itself pays it back: the
Lagrangian relaxation of the room, its multipliers moved by Polyak's step.
Invariant: every column that is kept fits alone; none that fits gains more than what is returned.
Source: Held, Wolfe and Crowder, Validation of subgradient optimization (1974).
Legend: O options, rows of room and of limits, q a multiple, g a bottleneck, C columns.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.jit import allocating, inlined
from planner.estimator.tables import Floats, Tables
from planner.estimator.unplaced_plan import UnplacedPlan, new_plan
from planner.search.column_generation.network import Network, counts_in, stage_seconds
from planner.search.column_generation.shortest_path import cheapest_pipelines, read_pipeline

FAR = 0.06  # pipelines that cost this share more than they are worth still say how far they are
DEPTHS = 2  # pipelines of one bottleneck that become columns
STEPS = 2  # of the multipliers, for one bottleneck
EASE = 0.8  # share of a multiplier that is left once it has done its work
TINY = 1e-9  # of what a column is worth


@by_reference
class Columns(NamedTuple):
    """Templates that are worth more than they cost.

    Attributes:
        gain: [C] what they are worth beyond their price, a share of what they are worth.
        plan: [C, ...] the templates, each with one split; its replicas are the multiple that
            tilings of experts ask for.
    """

    gain: Floats
    plan: UnplacedPlan


def new_columns(most: int) -> Columns:
    """Room for so many columns."""
    return Columns(np.zeros(most), new_plan(slots=most, fillings=1))


@allocating
def price_columns(
    t: Tables, n: Network, horizon_s: float, duals: Floats, least_gain: float, columns: Columns
) -> None:
    """Collect the best columns of all bottlenecks that promise enough.

    A TP group has a price in samples [O].  Bottlenecks that gained less than `least_gain` the last
    time stay out (partial pricing).
    """
    for q in range(len(n.multiples)):
        for row in range(len(n.room)):
            room = t.room[row] if row < len(duals) else t.limit[row - len(duals)]
            n.room[row] = room / n.multiples[q]
        for size in range(len(t.sizes)):
            if t.sizes[size] * n.multiples[q] > t.batch:
                continue
            for g in range(len(n.taus_s)):
                if n.gain[q, size, g] < least_gain or n.taus_s[g] > horizon_s:
                    continue
                if not n.is_ready[q, size]:
                    n.is_ready[q, size] = 1
                    stage_seconds(t, size, n.multiples[q], n.stage_s[q, size])
                worth = t.sizes[size] * (1 + horizon_s / n.taus_s[g])
                found = price_bottleneck(t, n, q, size, g, worth, duals, columns)
                n.gain[q, size, g] = found


@inlined
def price_bottleneck(
    t: Tables,
    n: Network,
    q: int,
    size: int,
    g: int,
    worth: float,
    duals: Floats,
    columns: Columns,
) -> float:
    """Collect the best columns of one bottleneck that the room has place for.

    A replica is worth so many samples; the multipliers of rows of room move on.  Returns what no
    column that fits gains, a share of the worth; -1 where that is below -`FAR`.
    """
    multiplier = n.multiplier[q, size]
    least = math.inf
    for _ in range(STEPS):
        credit = 0.0
        for row in range(len(n.room)):
            credit += multiplier[row] * n.room[row]
        for option in range(len(duals)):
            n.duals[option] = duals[option]
            for row in range(len(n.room)):
                if counts_in(t, row, option):
                    n.duals[option] += multiplier[row] * t.option_tp[option]
        most = worth * (1 + FAR) + credit
        cost = cheapest_pipelines(t, n, q, size, n.taus_s[g], most)
        if cost == math.inf:
            least = -1.0
            break
        excess = worth + credit - cost
        least = min(least, excess / worth)
        fits = keep_columns(t, n, n.multiples[q], worth, multiplier, columns)
        if fits or excess <= TINY * worth:
            break
        raise_multipliers(multiplier, n.asked, n.room, excess)
    else:
        return least
    for row in range(len(multiplier)):
        multiplier[row] *= EASE
    return least


@inlined
def raise_multipliers(multiplier: Floats, asked: Floats, room: Floats, excess: float) -> None:
    """Polyak's step: rows of which too much was asked become dearer, the others cheaper.

    `asked` are the GPUs that the cheapest pipeline asks for, `room` those that it may ask for, and
    `excess` what it gains at these prices.  No multiplier falls below 0.
    """
    length = 0.0
    for row in range(len(multiplier)):
        if asked[row] > room[row] or multiplier[row] > 0.0:
            length += (asked[row] - room[row]) ** 2
    for row in range(len(multiplier)):
        step = excess / length * (asked[row] - room[row]) if length else 0.0
        multiplier[row] = max(0.0, multiplier[row] + step)


@inlined
def keep_columns(
    t: Tables, n: Network, multiple: int, worth: float, multiplier: Floats, columns: Columns
) -> bool:
    """Collect the cheapest pipelines that fit alone; whether the cheapest of all does.

    What they paid for GPUs beyond the room is no part of their price.
    """
    cost, options = n.cost, n.path[0]
    fits_first = False
    for rank in range(DEPTHS):
        at = 0
        for position in range(len(cost)):
            if cost[position] < cost[at]:
                at = position
        if cost[at] == math.inf:
            break
        gain = worth - cost[at]
        cost[at] = math.inf
        read_pipeline(t, n, at)
        fits = True
        for row in range(len(n.room)):
            used = 0.0
            for s in range(at + 1):
                if counts_in(t, row, options[s]):
                    used += t.option_tp[options[s]]
            gain += multiplier[row] * used
            fits = fits and used <= n.room[row]
            if rank == 0:
                n.asked[row] = used
        if rank == 0:
            fits_first = fits
        if fits and gain > TINY * worth:
            keep_column(columns, gain / worth, multiple, at + 1, n)
    return fits_first


@inlined
def keep_column(columns: Columns, gain: float, multiple: int, depth: int, n: Network) -> None:
    """Write down the path as a column, in place of the worst one where there are too many."""
    plan = columns.plan
    row = plan.number[0]
    if row == len(columns.gain):
        row = 0
        for other in range(len(columns.gain)):
            if columns.gain[other] < columns.gain[row]:
                row = other
        if columns.gain[row] >= gain:
            return
    else:
        plan.number[0] += 1
    columns.gain[row] = gain
    plan.replicas[row] = multiple
    plan.depth[row] = depth
    for s in range(depth):
        plan.options[row, s] = n.path[0, s]
        plan.blocks[row, 0, s] = n.path[1, s]
