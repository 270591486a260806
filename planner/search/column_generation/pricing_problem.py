"""The pricing problem: the templates that are worth most beyond what their GPUs cost.

A replica with micro-batches of b samples trains b (1 + (T - sum t) / tau) samples in T seconds and
uses GPUs at a price.  For a given bottleneck tau both add up over stages, so that every multiple of
replicas, micro-batch size and tau has its own shortest path.
At given prices the cheapest pipeline may ask for more GPUs of a type than there are: no plan has
it.  So what is asked beyond the room costs a multiplier, and the room itself pays it back: the
Lagrangian relaxation of the room, its multipliers moved by Polyak's step.
Invariant: every column that is kept fits alone; none that fits gains more than what is returned.
Source: Held, Wolfe and Crowder, Validation of subgradient optimization (1974).
Legend: O options and rows of room, Z sizes, G bottlenecks, Q multiples, C columns, D stages.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.fill.filling import stage_rows
from planner.estimator.fill.stage import slot_of
from planner.estimator.jit import allocating, inlined, jit
from planner.estimator.tables import MAX_DEPTH, Floats, Ints, Tables
from planner.search.column_generation.gradient_limit import GradientLimit
from planner.search.column_generation.shortest_path import (
    Labels,
    cheapest_pipelines,
    new_labels,
    read_pipeline,
)

GRID = 1.2  # ratio of neighbouring bottlenecks
BOTTLENECKS = 55  # from the least that a stage can take on
FAR = 0.06  # pipelines that cost this share more than they are worth still say how far they are
DEPTHS = 2  # pipelines of one bottleneck that become columns
STEPS = 2  # of the multipliers, for one bottleneck
EASE = 0.8  # share of a multiplier that is left once it has done its work
TINY = 1e-9  # of what a column is worth


@by_reference
class Columns(NamedTuple):
    """Templates that are worth more than they cost; the first `number[0]` rows hold.

    Attributes:
        number: [1] of them.
        gain: [C] what they are worth beyond their price, a share of what they are worth.
        size: [C] index of the micro-batch size.
        multiple: [C] replicas come in multiples of this, so that experts can be tiled.
        depth: [C].
        options: [C, D].
        blocks: [C, D].
    """

    number: Ints
    gain: Floats
    size: Ints
    multiple: Ints
    depth: Ints
    options: Ints
    blocks: Ints


def new_columns(most: int) -> Columns:
    """Room for so many columns."""
    numbers = [np.zeros(most, np.int64) for _ in range(3)]
    stages = [np.zeros((most, MAX_DEPTH), np.int64) for _ in range(2)]
    return Columns(np.zeros(1, np.int64), np.zeros(most), *numbers, *stages)


@by_reference
class PricingProblem(NamedTuple):
    """What stays the same while prices change, and what is learned.

    Attributes:
        multiples: [Q] of replicas, which tilings of experts can ask for.
        taus_s: [G] bottlenecks, ascending.
        edge_s: [Z, T, T] messages, as `cheapest_pipelines` takes them.
        stage_s: [Q, Z, O, P, 2, dense + 1, L + 1], filled where `is_ready` [Q, Z] is 1.
        is_ready: see there.
        multiplier: [Q, Z, O] of a GPU beyond the room.
        asked: [O] GPUs that the cheapest pipeline asks for, by row of room.
        relaxed: [O] price of a TP group with multipliers.
        room: [O] GPUs that a column may use.
        stages: [2, D] options and blocks of a pipeline.
        labels: of the shortest path.
    """

    multiples: Ints
    taus_s: Floats
    edge_s: Floats
    stage_s: Floats
    is_ready: Ints
    multiplier: Floats
    asked: Floats
    relaxed: Floats
    room: Floats
    stages: Ints
    labels: Labels

    @property
    def tried(self) -> tuple[int, int, int]:
        """(Q, Z, G) bottlenecks that there are to try."""
        return (*self.is_ready.shape, len(self.taus_s))


def new_problem(t: Tables, deepest: int) -> PricingProblem:
    """Nothing priced yet; pipelines have at most so many stages."""
    types, options, sizes = len(t.node_gpus), len(t.option_tp), len(t.sizes)
    deepest = min(deepest, t.layers, MAX_DEPTH)
    multiples = replica_multiples(t)
    of_all = (len(multiples), sizes)
    least_s = t.block_s[:, :, :, 1].min() * math.ceil(t.layers / deepest)
    return PricingProblem(
        multiples,
        least_s * GRID ** np.arange(BOTTLENECKS),
        message_seconds(t),
        np.empty((*of_all, options, deepest, 2, t.dense + 1, t.layers + 1)),
        np.zeros(of_all, np.int64),
        np.zeros((*of_all, options)),
        np.zeros(options),
        np.zeros(options),
        np.zeros(options),
        np.zeros((2, MAX_DEPTH), np.int64),
        new_labels(deepest, types, t.dense, t.layers),
    )


def replica_multiples(t: Tables) -> Ints:
    """[Q] how many replicas the tilings of experts can ask for at once: powers of two."""
    most = 1
    if (t.ways > t.option_tp[:, None]).any():
        most = min(int((t.ways / t.option_tp[:, None]).max()), int(t.room.max()), t.batch)
    return 2 ** np.arange(most.bit_length())


def message_seconds(t: Tables) -> Floats:
    """[Z, T, T] what a message between neighbouring stages takes, by and large.

    Between nodes the mean over TP degrees, half of the GPUs of a node sending at once, or all where
    a node takes one stage of many replicas; within a class of nodes as many messages leave a node
    as there are nodes to a pipeline of TP 1.
    """
    types = len(t.node_gpus)
    edge_s = np.zeros((len(t.sizes), types, types))
    sending = t.node_gpus if t.spreads_experts else (t.node_gpus + 1) // 2
    port_s = t.port_s[np.arange(len(t.option_type)), :, sending[t.option_type]]
    for one in range(types):
        for other in range(types):
            ends = port_s[t.option_type == one][:, None], port_s[t.option_type == other][None, :]
            edge_s[:, one, other] = np.maximum(*ends).mean(axis=(0, 1))
    if not t.spreads_experts:
        for kind, gpus in enumerate(t.node_gpus):
            edge_s[:, kind, kind] /= gpus
            edge_s[:, kind, kind] += t.inside_s[kind] * (1 - 1 / gpus)
    return edge_s


@allocating
def price_columns(
    t: Tables,
    p: PricingProblem,
    horizon_s: float,
    price: Floats,
    limit: GradientLimit,
    gain: Floats,
    least_gain: float,
    columns: Columns,
) -> None:
    """Collect the best columns of all bottlenecks that promise enough.

    Args:
        t: what it prices with.
        p: learns the multipliers.
        horizon_s: T.
        price: [O] of a TP group in samples; infinite: not to be used.
        limit: of gradient sums.
        gain: [Q, Z, G] of the best column of each bottleneck, a share of its worth; -1: far below.
        least_gain: bottlenecks that gained less the last time stay out (partial pricing).
        columns: takes the columns.
    """
    for q in range(len(p.multiples)):
        multiple = p.multiples[q]
        for row in range(len(price)):
            p.room[row] = t.room[row] / multiple
        for size in range(len(t.sizes)):
            if t.sizes[size] * multiple > t.batch:
                continue
            for g in range(len(p.taus_s)):
                if gain[q, size, g] < least_gain or p.taus_s[g] > horizon_s:
                    continue
                if not p.is_ready[q, size]:
                    p.is_ready[q, size] = 1
                    most = t.batch // t.sizes[size]
                    stage_seconds(t, size, multiple, most, p.stage_s[q, size])
                worth = t.sizes[size] * (1 + horizon_s / p.taus_s[g])
                gain[q, size, g] = price_bottleneck(
                    t,
                    p,
                    size,
                    multiple,
                    p.taus_s[g],
                    worth,
                    price,
                    limit,
                    p.stage_s[q, size],
                    p.edge_s[size],
                    p.multiplier[q, size],
                    columns,
                )


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


@inlined
def price_bottleneck(
    t: Tables,
    p: PricingProblem,
    size: int,
    multiple: int,
    tau_s: float,
    worth: float,
    price: Floats,
    limit: GradientLimit,
    stage_s: Floats,
    edge_s: Floats,
    multiplier: Floats,
    columns: Columns,
) -> float:
    """Collect the best columns of one bottleneck that the room has place for.

    A replica is worth so many samples; the multipliers [O] of rows of room move on.

    Returns:
        What no column that fits gains, a share of the worth; -1 where that is below -`FAR`.
    """
    rate = t.sizes[size] / tau_s
    least = math.inf
    for _ in range(STEPS):
        credit = 0.0
        for row in range(len(price)):
            credit += multiplier[row] * p.room[row]
        for option in range(len(price)):
            p.relaxed[option] = price[option]
            for row in range(option + 1):
                if t.option_type[row] == t.option_type[option]:
                    p.relaxed[option] += multiplier[row] * t.option_tp[option]
        most = worth * (1 + FAR) + credit
        cost = cheapest_pipelines(t, stage_s, edge_s, limit, tau_s, p.relaxed, rate, most, p.labels)
        if cost == math.inf:
            least = -1.0
            break
        excess = worth + credit - cost
        least = min(least, excess / worth)
        fits = keep_columns(t, p, size, multiple, worth, multiplier, columns)
        if fits or excess <= TINY * worth:
            break
        raise_multipliers(multiplier, p.asked, p.room, excess)
    else:
        return least
    for row in range(len(price)):
        multiplier[row] *= EASE
    return least


@jit
def raise_multipliers(multiplier: Floats, asked: Floats, room: Floats, excess: float) -> None:
    """Polyak's step: rows of which too much was asked become dearer, the others cheaper.

    Args:
        multiplier: [O] so far; changed, never below 0.
        asked: [O] GPUs that the cheapest pipeline asks for.
        room: [O] GPUs that it may ask for.
        excess: what it gains at these prices.
    """
    length = 0.0
    for row in range(len(multiplier)):
        if asked[row] > room[row] or multiplier[row] > 0.0:
            length += (asked[row] - room[row]) ** 2
    for row in range(len(multiplier)):
        step = excess / length * (asked[row] - room[row]) if length else 0.0
        multiplier[row] = max(0.0, multiplier[row] + step)


@jit
def keep_columns(
    t: Tables,
    p: PricingProblem,
    size: int,
    multiple: int,
    worth: float,
    multiplier: Floats,
    columns: Columns,
) -> bool:
    """Collect the cheapest pipelines that fit alone; whether the cheapest of all does.

    What they paid for GPUs beyond the room is no part of their price.
    """
    cost, options, blocks = p.labels.cost, p.stages[0], p.stages[1]
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
        read_pipeline(t, p.labels, at, options, blocks)
        fits = True
        for row in range(len(p.room)):
            used = 0.0
            for s in range(at + 1):
                if row <= options[s] and t.option_type[row] == t.option_type[options[s]]:
                    used += t.option_tp[options[s]]
            gain += multiplier[row] * used
            fits = fits and used <= p.room[row]
            if rank == 0:
                p.asked[row] = used
        if rank == 0:
            fits_first = fits
        if fits and gain > TINY * worth:
            keep_column(columns, gain / worth, size, multiple, at + 1, options, blocks)
    return fits_first


@jit
def keep_column(
    columns: Columns,
    gain: float,
    size: int,
    multiple: int,
    depth: int,
    options: Ints,
    blocks: Ints,
) -> None:
    """Write down a column, in place of the worst one where there are too many."""
    row = columns.number[0]
    if row == len(columns.gain):
        row = 0
        for other in range(len(columns.gain)):
            if columns.gain[other] < columns.gain[row]:
                row = other
        if columns.gain[row] >= gain:
            return
    else:
        columns.number[0] += 1
    columns.gain[row] = gain
    columns.size[row] = size
    columns.multiple[row] = multiple
    columns.depth[row] = depth
    for s in range(depth):
        columns.options[row, s] = options[s]
        columns.blocks[row, s] = blocks[s]
