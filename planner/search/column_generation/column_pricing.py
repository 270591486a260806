"""The templates that are worth most at given GPU prices.

A replica with micro-batches of b samples trains b (1 + (T - sum t) / tau) samples in T seconds and
uses GPUs at a price.  For a given bottleneck tau both add up over stages
(`planner.search.column_generation.chains`), so every micro-batch size and tau has its cheapest
pipelines.
Invariant: messages between stages are those of `edge_s`, which the fill of a template prices again.
Source: research on plan search (column generation).
Legend: O options, P positions, L blocks, T types, Z sizes, G bottlenecks, Q bundles, C columns.
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.fill.filling import stage_rows
from planner.estimator.fill.stage import slot_of
from planner.estimator.fill.zone_limits import Zones, blocks_in_zones
from planner.estimator.jit import allocating, inlined, jit
from planner.estimator.tables import Floats, Ints, Tables
from planner.search.column_generation.best_columns import Columns
from planner.search.column_generation.chains import Chains, compare_options
from planner.search.column_generation.within_room import best_within_room

FAR = 0.06  # a column that costs so much more than it is worth is of no interest


@inlined
def stage_seconds(t: Tables, size: int, replicas: int, most: int, out: Floats) -> None:
    """Seconds of every stage there can be, messages apart; infinite where memory is too small.

    Args:
        t: what it prices with.
        size: index of the micro-batch size.
        replicas: of the template, for tilings and ZeRO.
        most: micro-batches of a replica, as far as they bound what is in flight.
        out: [O, P, 2, dense + 1, L + 1] by option, position from the end, whether it is the first
            stage, blocks of the first kind and of the second.
    """
    for option in range(out.shape[0]):
        for position in range(out.shape[1]):
            for is_first in range(2):
                rows = out[option, position, is_first]
                fixed_s = is_first * t.ends_s[option, size, 0]
                if position == 0:
                    fixed_s += t.ends_s[option, size, 1]
                if t.ends_s[option, size, 0] == math.inf or is_full(out, option, position):
                    for dense in range(rows.shape[0]):
                        for others in range(rows.shape[1]):
                            rows[dense, others] = math.inf
                    continue
                s = 1 - is_first
                depth = s + position + 1
                slot = slot_of(option, size, s, depth, most, replicas)
                stage_rows(t, slot, s, fixed_s, rows)


@jit
def is_full(stage_s: Floats, option: int, position: int) -> bool:
    """Whether no block fits nearer to the end, where less is in flight; the last does not count."""
    if position < 2:
        return False
    for is_first in range(2):
        for dense in range(min(2, stage_s.shape[3])):
            if stage_s[option, position - 1, is_first, dense, 1 - dense] < math.inf:
                return False
    return True


@allocating
def price_columns(
    t: Tables,
    horizon_s: float,
    price: Floats,
    alone: Floats,
    edge_s: Floats,
    zones: Zones,
    taus_s: Floats,
    together: Ints,
    stage_s: Floats,
    is_ready: Ints,
    promise: Floats,
    least_promise: float,
    learns: bool,
    step: int,
    scarcities: Floats,
    chains: Chains,
    columns: Columns,
) -> int:
    """Collect the best columns of every micro-batch size and bottleneck; returns how many it tried.

    Args:
        t: what it prices with.
        horizon_s: T.
        price: [O] of a TP group in samples; infinite: not to be used.
        alone: [O] GPUs that one pipeline may take, by row of room.
        edge_s: [Z, T, T] messages as `cheapest_chains` takes them.
        zones: likewise.
        taus_s: [G] ascending.
        together: [Q] bundles of replicas.
        stage_s: [Q, Z, O, P, 2, dense + 1, L + 1], filled here where `is_ready` [Q, Z] is 0.
        is_ready: see there.
        promise: [Q, Z, G] best gain of the last run that learns, a share of what the column is
            worth; -1 where that is far below 0.
        least_promise: bottlenecks with less stay out.
        learns: whether `promise` changes.
        step: every so many of the bottlenecks.
        scarcities: [Q, Z, O] first prices of GPUs beyond the room; as they are in the end.
        chains: for the function's own use.
        columns: takes the columns.
    """
    tried = 0
    side_s = np.zeros(edge_s.shape[1])
    rows = len(price)
    room, dearer, asked = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    most_blocks = np.zeros((len(t.option_tp), t.layers + 1), np.int64)
    blocks_in_zones(t, zones, most_blocks)
    compare_options(t, most_blocks, chains)
    for bundle in range(len(together)):
        for row in range(rows):
            room[row] = min(t.room[row] / together[bundle], alone[row])
        for size in range(len(t.sizes)):
            b = t.sizes[size]
            if b * together[bundle] > t.batch:
                continue
            for kind in range(len(side_s)):
                side_s[kind] = edge_s[size, kind, kind]
            scarcity = scarcities[bundle, size]
            for g in range(0, len(taus_s), step):
                tau_s = taus_s[g]
                if promise[bundle, size, g] < least_promise or tau_s > horizon_s:
                    continue
                if not is_ready[bundle, size]:
                    is_ready[bundle, size] = 1
                    stage_seconds(t, size, together[bundle], t.batch // b, stage_s[bundle, size])
                tried += 1
                gain = best_within_room(
                    t,
                    size,
                    together[bundle],
                    b * (1 + horizon_s / tau_s),
                    tau_s,
                    price,
                    room,
                    edge_s[size],
                    side_s,
                    stage_s[bundle, size],
                    most_blocks,
                    FAR if learns else 0.0,
                    scarcity,
                    dearer,
                    asked,
                    chains,
                    columns,
                )
                if learns:
                    for near in range(g, min(g + step, len(taus_s))):
                        promise[bundle, size, near] = gain
    return tried
