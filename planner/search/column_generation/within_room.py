"""The best templates of one bottleneck among those that the room has place for.

At given prices the cheapest pipeline may ask for more GPUs of a type than there are: no plan has
it, and a mix that takes half of it promises what no plan keeps.  With a price on what is asked
beyond the room, and the same price paid for the room itself, a pipeline that respects the room
gains no less than before, so that the best of all pipelines still bounds them (Lagrange).  The
price climbs along what the best one asks too much (Polyak's step), until it respects the room or
gains nothing.
Invariant: every column that is kept fits alone; no such column is worth more than what is returned.
Source: Lagrangian relaxation of the room in the pricing problem; research on plan search.
Legend: O options and rows of room, T types, L blocks.
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.jit import inlined
from planner.estimator.tables import MAX_DEPTH, Floats, Ints, Tables
from planner.search.column_generation.best_columns import Columns, keep_column
from planner.search.column_generation.chains import Chains, cheapest_chains, read_chain
from planner.search.column_generation.scarcity import climb, ease

DEPTHS = 2  # chains of one bottleneck that become columns
TINY = 1e-9  # of what a column is worth
CLIMBS = 2  # prices of what is asked beyond the room that are tried


@inlined
def best_within_room(
    t: Tables,
    size: int,
    together: int,
    worth: float,
    tau_s: float,
    price: Floats,
    room: Floats,
    edge_s: Floats,
    side_s: Floats,
    stage_s: Floats,
    most_blocks: Ints,
    far: float,
    scarcity: Floats,
    dearer: Floats,
    asked: Floats,
    chains: Chains,
    columns: Columns,
) -> float:
    """Collect the best columns of one bottleneck that the room has place for.

    Args:
        t: what it prices with.
        size: index of the micro-batch size.
        together: replicas of a bundle.
        worth: samples of a replica.
        tau_s: no stage is slower.
        price: [O] of a TP group.
        room: [O] GPUs that one pipeline may ask for, by row.
        edge_s: [T, T] messages.
        side_s: [T] what of tau they take.
        stage_s: of the bundle and size.
        most_blocks: [O, L + 1].
        far: pipelines that cost so much more than they are worth still say how far they are.
        scarcity: [O] first price of a GPU beyond the room, by row; climbs on.
        dearer: for the function's own use.
        asked: likewise.
        chains: likewise.
        columns: takes the columns.

    Returns:
        What no column that respects the room exceeds in worth beyond its price, a share of the
        worth; -1 where that is below -`far`.
    """
    rows = len(price)
    rate = t.sizes[size] / tau_s
    least = math.inf
    for _ in range(CLIMBS):
        credit = 0.0
        for row in range(rows):
            credit += scarcity[row] * room[row]
        for option in range(rows):
            dearer[option] = price[option]
            for row in range(option + 1):
                if t.option_type[row] == t.option_type[option]:
                    dearer[option] += scarcity[row] * t.option_tp[option]
        limit = worth * (1 + far) + credit
        best = cheapest_chains(
            t, stage_s, tau_s, dearer, rate, edge_s, side_s, most_blocks, limit, chains
        )
        if best == math.inf:
            ease(scarcity)
            return -1.0
        excess = worth + credit - best
        least = min(least, excess / worth)
        fits = keep_within_room(t, size, together, worth, room, scarcity, asked, chains, columns)
        if fits or excess <= TINY * worth:
            ease(scarcity)
            break
        climb(scarcity, asked, room, excess)
    return least


@inlined
def keep_within_room(
    t: Tables,
    size: int,
    together: int,
    worth: float,
    room: Floats,
    scarcity: Floats,
    asked: Floats,
    chains: Chains,
    columns: Columns,
) -> bool:
    """Collect those of the cheapest chains that fit alone; whether the cheapest of all does.

    Args:
        t: what it prices with.
        size: index of the micro-batch size.
        together: replicas of a bundle.
        worth: samples of a replica.
        room: [O] GPUs that one pipeline may ask for, by row.
        scarcity: [O] what the chains paid besides for a GPU, by row of room.
        asked: [O] takes the GPUs that the cheapest asks for, by row of room.
        chains: of the dynamic programme.
        columns: takes the columns.
    """
    options, blocks = np.zeros(MAX_DEPTH, np.int64), np.zeros(MAX_DEPTH, np.int64)
    uses = np.zeros(len(asked))
    fits_first = False
    for rank in range(DEPTHS):
        at = int(np.argmin(chains.cost))
        if chains.cost[at] == math.inf:
            break
        read_chain(t, chains, at, options, blocks)
        for row in range(len(uses)):
            uses[row] = 0.0
        for s in range(at + 1):
            for row in range(options[s] + 1):
                if t.option_type[row] == t.option_type[options[s]]:
                    uses[row] += t.option_tp[options[s]]
        gain = worth - chains.cost[at]
        fits = True
        for row in range(len(uses)):
            gain += scarcity[row] * uses[row]
            fits = fits and uses[row] <= room[row]
        if rank == 0:
            fits_first = fits
            for row in range(len(uses)):
                asked[row] = uses[row]
        chains.cost[at] = math.inf
        if not fits or gain <= TINY * worth:
            continue
        row = keep_column(columns, gain / worth)
        if row >= 0:
            columns.gain[row] = gain / worth
            columns.size[row] = size
            columns.together[row] = together
            columns.depth[row] = at + 1
            for s in range(at + 1):
                columns.options[row, s] = options[s]
                columns.blocks[row, s] = blocks[s]
    return fits_first
