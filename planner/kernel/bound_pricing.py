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

from planner.kernel.chains import Chains, cheapest_chains, read_chain
from planner.kernel.column_pricing import stage_seconds
from planner.kernel.jit import jit
from planner.kernel.tables import MAX_DEPTH, Floats, Ints, Tables
from planner.kernel.zones import Zones, blocks_in_zones, zone_seconds

TINY = 1e-9


class Relaxed(NamedTuple):
    """Relaxed columns; the first `number[0]` rows hold.

    A column trains `fixed + (T - sum_s) * rate` samples in T seconds.

    Attributes:
        number: [1] of them.
        gain: [C] what it was worth beyond its price, a share, when it was found.
        fixed: [C] samples.
        rate: [C] samples per second; 0 where the time does not count.
        sum_s: [C].
        sync_s: [C] least time in which its GPU that holds most sums its gradients.
        uses: [C, O] GPUs by room row, larger TP groups of a type included.
    """

    number: Ints
    gain: Floats
    fixed: Floats
    rate: Floats
    sum_s: Floats
    sync_s: Floats
    uses: Floats


@jit
def new_relaxed(most: int, options: int) -> Relaxed:
    """Room for so many columns."""
    return Relaxed(
        np.zeros(1, np.int64),
        np.zeros(most),
        np.zeros(most),
        np.zeros(most),
        np.zeros(most),
        np.zeros(most),
        np.zeros((most, options)),
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


@jit
def worst_columns(
    t: Tables,
    horizon_s: float,
    price: Floats,
    replica_price: float,
    edge_s: Floats,
    side_s: Floats,
    taus_s: Floats,
    least: Ints,
    stage_s: Floats,
    zones: Zones,
    chains: Chains,
    columns: Relaxed,
) -> float:
    """Collect the relaxed columns that are worth more than they cost.

    Args:
        t: what it prices with.
        horizon_s: T.
        price: [O] of a TP group in samples.
        replica_price: of a replica besides.
        edge_s: [Z, T, T] the cheapest message there can be.
        side_s: [Z, T] the cheapest of a stage of that type with any other.
        taus_s: [G] ascending; a cell lies between neighbours, the lowest starts at 0 where M is
            bounded, and no stage is below the first.
        least: [A] micro-batches that a replica of a class has at least, ascending powers of two;
            the last class has no upper end.
        stage_s: of `relaxed_stages`.
        zones: how long a stage sums its gradients, and at most.
        chains: for the function's own use.
        columns: takes those found, the last DP's of each cell.

    Returns:
        The largest share of its worth that any column is worth beyond its price; at most 0 if the
        prices are a proof.
    """
    worst = -math.inf
    columns.number[0] = 0
    options = np.zeros(MAX_DEPTH, np.int64)
    blocks = np.zeros(MAX_DEPTH, np.int64)
    most_blocks = np.zeros((len(t.option_tp), t.layers + 1), np.int64)
    blocks_in_zones(t, zones, most_blocks)
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
            for g in range(first, len(taus_s) - 1):
                low_s, high_s = taus_s[g], taus_s[g + 1]
                if low_s > longest_s:
                    break
                fixed, rate = float(b), b / low_s
                if not is_last and g == first:
                    fixed, rate = float(b * (2 * least[a] - 1)), 0.0
                worth = fixed + rate * horizon_s
                cost = cheapest_chains(
                    t,
                    stage_s[a, size],
                    high_s,
                    price,
                    rate,
                    edge_s[size],
                    side_s[size],
                    most_blocks,
                    worth - replica_price,
                    chains,
                )
                if cost == math.inf:
                    continue
                gain = (worth - replica_price - cost) / worth
                worst = max(worst, gain)
                if gain <= TINY or columns.number[0] == len(columns.gain):
                    continue
                row = columns.number[0]
                columns.number[0] = row + 1
                at = int(np.argmin(chains.cost))
                read_chain(t, chains, at, options, blocks)
                columns.gain[row] = gain
                columns.fixed[row] = fixed
                columns.rate[row] = rate
                columns.uses[row] = 0.0
                columns.sync_s[row] = 0.0
                paid = 0.0
                start = 0
                for s in range(at + 1):
                    seconds = zone_seconds(zones, options[s], start, start + blocks[s], t.layers)
                    columns.sync_s[row] = max(columns.sync_s[row], seconds)
                    start += blocks[s]
                    paid += price[options[s]]
                    for below in range(options[s] + 1):
                        if t.option_type[below] == t.option_type[options[s]]:
                            columns.uses[row, below] += t.option_tp[options[s]]
                columns.sum_s[row] = (cost - paid) / rate if rate > 0.0 else 0.0
    return worst
