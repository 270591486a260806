"""Templates as no real one can be better: the relaxed columns behind the proven bound.

Micro-batches are divisible, and bottlenecks come in cells [low, high]: stages may take `high`, but
samples count with `low`.  What a stage has in flight follows from the micro-batches that a class
of replicas has at least: of M in [m, 2m - 1], min(m, position).  A replica that could run twice as
many micro-batches as its class allows counts as if it ran the most without any bubble.
Invariant: a replica of any plan that takes at most T in its pipeline is worth at most a relaxed
column that uses the same GPUs.
Source: research on plan search (the bound).
Legend: A classes, Z sizes, G bottlenecks, C columns; others as in `column_pricing`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.estimator.fill.zone_limits import Zones, blocks_in_zones
from planner.estimator.jit import allocating, jit
from planner.estimator.tables import MAX_DEPTH, Floats, Ints, Tables
from planner.kernel.cheapest_walk import cheapest_walk
from planner.kernel.visits import Visits, Walk, read_walk
from planner.search.column_generation.column_pricing import stage_seconds
from planner.search.column_generation.scarcity import climb

TINY = 1e-9
WIDEST = 16  # cells that are looked at as one


class Sums(NamedTuple):
    """Least seconds of gradient sums, by how many pipelines there are at least.

    Attributes:
        block_s: [N, O] of a block on one GPU.
        ends_s: [N, O, 2] of embedding and head.
    """

    block_s: Floats
    ends_s: Floats


class Relaxed(NamedTuple):
    """Relaxed columns; the first `number[0]` rows hold.

    A column trains `fixed + (T - sum_s) * rate` samples in T seconds.

    Attributes:
        number: [1] of them.
        gain: [C] what it was worth beyond its price, a share, when it was found.
        fixed: [C] samples.
        rate: [C] samples per second; 0 where the time does not count.
        sum_s: [C].
        sync_s: [C, N] least time in which its GPU that holds most sums its gradients.
        uses: [C, O] GPUs by room row, larger TP groups of a type included.
        from_s: [C] least T in which its cell has so many micro-batches.
        until_s: [C] and the longest.
    """

    number: Ints
    gain: Floats
    fixed: Floats
    rate: Floats
    sum_s: Floats
    sync_s: Floats
    uses: Floats
    from_s: Floats
    until_s: Floats


@allocating
def new_relaxed(most: int, options: int, counts: int) -> Relaxed:
    """Room for so many columns."""
    return Relaxed(
        np.zeros(1, np.int64),
        np.zeros(most),
        np.zeros(most),
        np.zeros(most),
        np.zeros(most),
        np.zeros((most, counts)),
        np.zeros((most, options)),
        np.zeros(most),
        np.zeros(most),
    )


@jit
def relaxed_stages(t: Tables, least: Ints, replicas: int, out: Floats) -> None:
    """[A, Z, O, P, 2, dense + 1, L + 1] stage seconds of each class of micro-batches.

    Args:
        t: what it prices with.
        least: [A] micro-batches that a replica of the class has at least.
        replicas: so many that every tiling is possible and ZeRO saves most.
        out: the answer.
    """
    for a in range(len(least)):
        for size in range(len(t.sizes)):
            stage_seconds(t, size, replicas, least[a], out[a, size])


@allocating
def worst_columns(
    t: Tables,
    horizon_s: float,
    price: Floats,
    replica_price: float,
    visits: Visits,
    taus_s: Floats,
    least: Ints,
    stage_s: Floats,
    zones: Zones,
    sums: Sums,
    steps: int,
    stride: int,
    walk: Walk,
    columns: Relaxed,
) -> float:
    """Collect the relaxed columns that are worth more than they cost.

    Args:
        t: what it prices with.
        horizon_s: T.
        price: [O] of a GPU in samples, by row of room.
        replica_price: of a replica besides.
        visits: what stages there can be.
        taus_s: [G] ascending; a cell lies between neighbours, the lowest starts at 0 where M is
            bounded, and no stage is below the first.
        least: [A] micro-batches that a replica of a class has at least, ascending powers of two;
            the last class has no upper end.
        stage_s: of `relaxed_stages`.
        zones: how long a stage sums its gradients, and at most.
        sums: the same for other numbers of pipelines, to be noted down.
        steps: tries to prove that a column that asks for too much room is worth nothing.
        stride: 1: all cells; else only every so many, which proves nothing.
        walk: for the function's own use.
        columns: takes those found, the last DP's of each cell.

    Returns:
        The largest share of its worth that any column is worth beyond its price; at most 0 if the
        prices are a proof.
    """
    worst = -math.inf
    columns.number[0] = 0
    most_blocks = np.zeros((len(t.option_tp), t.layers + 1), np.int64)
    blocks_in_zones(t, zones, most_blocks)
    scarcity = np.zeros(len(price))
    by_way = np.zeros(len(visits.option))
    for a in range(len(least)):
        is_last = a == len(least) - 1
        for size in range(len(t.sizes)):
            b = t.sizes[size]
            if b * least[a] > t.batch:
                continue
            longest_s = horizon_s / least[a]
            first = 0
            if not is_last:  # cells below have room for twice the micro-batches of the class
                while (
                    first + 1 < len(taus_s)
                    and taus_s[first + 1] * 2 * (2 * least[a] - 1) <= horizon_s
                ):
                    first += 1
            scarcity[:] = 0.0
            last = first
            while last < len(taus_s) - 1 and taus_s[last] <= longest_s:
                last += 1
            g, width = first, 1
            while g < last:
                if stride > 1 and g % stride and g > first:
                    g += 1
                    continue
                width = 1 if stride > 1 else min(width, last - g)
                fixed, rate = float(b), b / taus_s[g]
                if not is_last and g == first:
                    fixed, rate = float(b * (2 * least[a] - 1)), 0.0
                tau_s = taus_s[g + width]
                if width > 1:  # many cells as one, which is worth no less
                    for way in range(len(by_way)):
                        by_way[way] = 0.0
                        for row in range(len(price)):
                            by_way[way] += visits.room[way, row] * price[row]
                    limit = fixed + rate * horizon_s - replica_price
                    rows = stage_s[a, size]
                    cost = cheapest_walk(
                        t, visits, size, rows, tau_s, by_way, rate, most_blocks, limit, walk
                    )
                    if cost < math.inf:
                        width //= 2
                        continue
                    g += width
                    width = min(2 * width, WIDEST)
                    continue
                before = columns.number[0]
                gain = best_of_cell(
                    t,
                    visits,
                    size,
                    fixed,
                    rate,
                    horizon_s,
                    tau_s,
                    price,
                    replica_price,
                    stage_s[a, size],
                    most_blocks,
                    sums,
                    steps,
                    scarcity,
                    walk,
                    columns,
                )
                worst = max(worst, gain)
                if columns.number[0] > before:
                    doubled_s = 2 * (2 * least[a] - 1) * taus_s[g]
                    columns.from_s[before] = least[a] * taus_s[g]
                    if rate == 0.0:  # the lowest cell begins at 0
                        columns.from_s[before] = doubled_s if g else 0.0
                    columns.until_s[before] = doubled_s
                    if is_last or rate == 0.0:
                        columns.until_s[before] = math.inf
                g += 1
                width = WIDEST if g == first + 1 else 2 if gain <= TINY else 1
    return worst


@allocating
def best_of_cell(
    t: Tables,
    visits: Visits,
    size: int,
    fixed: float,
    rate: float,
    horizon_s: float,
    tau_s: float,
    price: Floats,
    replica_price: float,
    stage_s: Floats,
    most_blocks: Ints,
    sums: Sums,
    steps: int,
    scarcity: Floats,
    walk: Walk,
    columns: Relaxed,
) -> float:
    """What the columns of a cell that the room has place for are worth beyond their price, at most.

    A column that asks for more GPUs than there are is in no plan.  With a price on what is asked
    beyond the room, or left of it, columns that respect the room get cheaper, so that the best of
    all columns bounds them; the price climbs along what the best one asks too much.

    Args:
        t: what it prices with.
        visits: what stages there can be.
        size: index of the micro-batch size.
        fixed: samples of a column of the cell.
        rate: its samples per second.
        horizon_s: T.
        tau_s: no stage is slower.
        price: [O] of a GPU in samples, by row of room.
        replica_price: of a replica besides.
        stage_s: of `relaxed_stages`, for the class and size of the cell.
        most_blocks: [O, L + 1] of a stage in front of so many blocks.
        sums: to be noted down with the column.
        steps: prices tried.
        scarcity: [O] first price of a GPU beyond the room by row; changed.
        walk: for the function's own use.
        columns: takes the column.

    Returns:
        A share of the worth; a column that shows it, or one that respects the room, is collected
        where it is positive.
    """
    rows = len(price)
    worth = fixed + rate * horizon_s
    dearer = np.zeros(len(visits.option))
    least = math.inf
    kept, tried = columns.number[0], columns.number[0] + 1
    if tried >= len(columns.gain):
        return math.inf
    columns.gain[kept] = 0.0
    for step in range(steps + 1):
        if step == steps and step:  # no proof: a column that asks too much, so that prices rise
            if columns.gain[kept] > TINY:
                break
            scarcity[:] = 0.0
        credit = 0.0
        for row in range(rows):
            credit += scarcity[row] * t.room[row]
        for way in range(len(dearer)):
            dearer[way] = 0.0
            for row in range(rows):
                dearer[way] += visits.room[way, row] * (price[row] + scarcity[row])
        limit = worth - replica_price + credit
        cost = cheapest_walk(
            t, visits, size, stage_s, tau_s, dearer, rate, most_blocks, limit, walk
        )
        if cost == math.inf:
            return min(least, 0.0)
        excess = limit - cost
        least = min(least, excess / worth)
        if least <= TINY:
            return least
        columns.fixed[tried] = fixed
        columns.rate[tried] = rate
        paid = keep_pipeline(t, visits, dearer, sums, walk, columns, tried)
        columns.sum_s[tried] = (cost - paid) / rate if rate > 0.0 else 0.0
        gain = excess - credit
        respects = True
        for row in range(rows):
            over = columns.uses[tried, row] - t.room[row]
            gain += columns.uses[tried, row] * scarcity[row]
            respects = respects and over <= TINY * t.room[row]
        columns.gain[tried] = gain / worth
        if columns.gain[tried] > columns.gain[kept]:
            copy_column(columns, tried, kept)
        if respects and gain > TINY * worth:
            copy_column(columns, tried, kept)
            break
        climb(scarcity, columns.uses[tried], t.room, excess)
    if columns.gain[kept] > TINY:
        columns.number[0] = tried
    return least


@allocating
def keep_pipeline(
    t: Tables,
    visits: Visits,
    price: Floats,
    sums: Sums,
    walk: Walk,
    columns: Relaxed,
    row: int,
) -> float:
    """Write down what the cheapest pipeline uses and sums; returns what its GPUs cost."""
    ways = np.zeros(MAX_DEPTH, np.int64)
    blocks = np.zeros(MAX_DEPTH, np.int64)
    at = int(np.argmin(walk.cost))
    read_walk(t, visits, walk, at, ways, blocks)
    columns.uses[row] = 0.0
    columns.sync_s[row] = 0.0
    paid = 0.0
    for s in range(at + 1):
        option = visits.option[ways[s]]
        for count in range(len(sums.block_s)):
            seconds = blocks[s] * sums.block_s[count, option]
            seconds += sums.ends_s[count, option, 0] if s == 0 else 0.0
            seconds += sums.ends_s[count, option, 1] if s == at else 0.0
            columns.sync_s[row, count] = max(columns.sync_s[row, count], seconds)
        paid += price[ways[s]]
        columns.uses[row] += visits.room[ways[s]]
    return paid


@allocating
def copy_column(columns: Relaxed, one: int, other: int) -> None:
    """Write a column over another."""
    columns.gain[other] = columns.gain[one]
    columns.fixed[other] = columns.fixed[one]
    columns.rate[other] = columns.rate[one]
    columns.sum_s[other] = columns.sum_s[one]
    columns.sync_s[other] = columns.sync_s[one]
    columns.uses[other] = columns.uses[one]
