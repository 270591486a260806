"""The cheapest pipeline where messages inside a node and between nodes are told apart.

A dynamic programme over positions from the end, as in `chains`, whose states are those of
`visits.Walk`.
Invariant: no chain of visits within tau is cheaper than what is found, unless above the limit.
Source: research on plan search (column generation).
Legend: E ways to use an option, K kinds, Q ports, R states, O options, P positions, L blocks.
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.jit import allocating, jit
from planner.estimator.tables import Floats, Ints, Tables
from planner.kernel.visits import Visits, Walk, stage_code
from planner.search.column_generation.ahead import least_ahead
from planner.search.column_generation.chains import find_span


@jit
def go_on(
    visits: Visits,
    walk: Walk,
    position: int,
    size: int,
    per_second: float,
    ahead: Floats,
    limit: float,
) -> bool:
    """Add the message to the stage at that position; whether a chain can stay below the limit.

    Args:
        visits: what stages there can be.
        walk: holds the chains of that many stages.
        position: of the stage that comes next.
        size: index of the micro-batch size.
        per_second: price of a second of any stage.
        ahead: [L + 1] what the blocks that are not covered cost at least, messages included.
        limit: dearer ones are of no use.
    """
    reached = False
    values, sources, came_from = walk.values, walk.sources, walk.came_from
    crossing_s, ports, width = visits.crossing_s, visits.crossing_s.shape[1], sources.shape[1]
    for port in range(ports):
        for covered in range(width):
            sources[port, covered] = math.inf
        for behind in range(ports):
            if crossing_s[size, port, behind] == math.inf:
                continue
            edge = 2 * per_second * crossing_s[size, port, behind]
            for covered in range(width):
                cost = values[position, behind, covered] + edge
                is_less = cost < sources[port, covered]
                sources[port, covered] = cost if is_less else sources[port, covered]
                before = came_from[position, port, covered]
                came_from[position, port, covered] = behind if is_less else before
        within = limit + 2 * per_second * visits.side_s[size, port]
        for covered in range(width):
            is_far = sources[port, covered] + ahead[covered] >= within
            sources[port, covered] = math.inf if is_far else sources[port, covered]
        reached = find_span(sources, port, walk.span) or reached
    for kind in range(len(visits.gpus)):
        edge = 2 * per_second * visits.inside_s[size, kind]
        for state in range(walk.state[kind] + 1, walk.state[kind] + visits.gpus[kind]):
            for covered in range(width):
                cost = values[position, state, covered]
                is_far = cost + ahead[covered] >= limit
                sources[state, covered] = math.inf if is_far else cost + edge
            reached = find_span(sources, state, walk.span) or reached
    return reached


@jit
def put_stages(
    sources: Floats,
    source: int,
    span: Ints,
    price: float,
    per_second: float,
    stage_s: Floats,
    option: int,
    position: int,
    within_s: float,
    most: Ints,
    dearest: Floats,
    dense: int,
    way: int,
    stays: int,
    values: Floats,
    stages: Ints,
    state: int,
) -> None:
    """Put stages of every size, none of them the first, in front of chains.

    Whole arrays are handed over, and indices without a sign, as in `chains.put_in_front`.

    Args:
        sources: [R + 1, L + 1] chains with the message, by blocks covered.
        source: state of the chains.
        span: [R + 1, 2] of those that are finite.
        price: of the stage's GPUs.
        per_second: price of its seconds.
        stage_s: of `column_pricing.stage_seconds`.
        option: of the stage.
        position: of the stage.
        within_s: no slower.
        most: [O, L + 1] blocks that it may hold in front of so many.
        dearest: [O, L + 1] what it may cost, if the model has blocks of one kind.
        dense: blocks of the first kind.
        way: of the stage.
        stays: 1: the message behind it stays on its node.
        values: [P + 1, R, L + 1] cheapest chains, where it is better.
        stages: [P + 1, R, L + 1] their front stages.
        state: of the chains with the stage.
    """
    layers = sources.shape[1] - 1
    start, stop = span[source, 0], span[source, 1]
    after = position + 1
    if dense == 0:
        for blocks in range(1, layers - start if start < stop else 0):
            seconds = stage_s[option, position, 0, 0, blocks]
            if seconds > within_s:
                break
            added = price + per_second * seconds
            if added >= dearest[option, blocks]:
                continue
            code = stage_code(way, blocks, stays, layers)
            more = np.uint64(blocks)
            for covered in range(np.uint64(start), np.uint64(max(0, min(stop, layers - blocks)))):
                at = covered + more
                cost = sources[source, covered] + added
                is_less = (cost < values[after, state, at]) & (most[option, covered] >= blocks)
                before = values[after, state, at]
                values[after, state, at] = cost if is_less else before
                stages[after, state, at] = code if is_less else stages[after, state, at]
        return
    for covered in range(start, min(stop, layers)):
        if sources[source, covered] == math.inf:
            continue
        left = layers - covered
        for blocks in range(1, min(left, most[option, covered] + 1)):
            first = max(0, min(left, dense) - (left - blocks))
            seconds = stage_s[option, position, 0, first, blocks - first]
            if seconds > within_s:
                break
            cost = sources[source, covered] + price + per_second * seconds
            if cost < values[after, state, covered + blocks]:
                values[after, state, covered + blocks] = cost
                stages[after, state, covered + blocks] = stage_code(way, blocks, stays, layers)


@jit
def put_first(
    walk: Walk,
    source: int,
    price: float,
    per_second: float,
    stage_s: Floats,
    option: int,
    position: int,
    within_s: float,
    most: Ints,
    dense: int,
    way: int,
    stays: int,
) -> None:
    """Put a first stage with all blocks that are left in front of chains."""
    layers = walk.sources.shape[1] - 1
    start, stop = walk.span[source, 0], walk.span[source, 1]
    for covered in range(min(stop, layers) - 1, start - 1, -1):
        left = layers - covered
        first = min(left, dense)
        seconds = stage_s[option, position, 1, first, left - first]
        if seconds > within_s:
            if dense == 0:
                break  # with more blocks it takes longer
            continue
        cost = walk.sources[source, covered] + price + per_second * seconds
        if cost < walk.cost[position] and most[option, covered] >= left:
            walk.cost[position] = cost
            walk.first[position] = stage_code(way, left, stays, layers)


@jit
def merge_visits(walk: Walk, first: int, stop: int) -> bool:
    """Merge the chains of some states of visits; whether there is any."""
    sources = walk.sources
    merged = len(sources) - 1
    for covered in range(sources.shape[1]):
        sources[merged, covered] = math.inf
    for state in range(first, stop):
        for covered in range(sources.shape[1]):
            sources[merged, covered] = min(sources[merged, covered], sources[state, covered])
    return find_span(sources, merged, walk.span)


@allocating
def prepare(
    t: Tables,
    visits: Visits,
    size: int,
    stage_s: Floats,
    tau_s: float,
    price: Floats,
    per_second: float,
    limit: float,
    ahead: Floats,
    walk: Walk,
) -> bool:
    """Fill `ahead` and `walk.dearest`; whether any pipeline can stay below the limit.

    Arguments are those of `cheapest_walk`; ahead: [L + 1].
    """
    options = len(t.option_tp)
    by_option, message_s = np.full(options, math.inf), np.full(options, math.inf)
    for way in range(len(price)):
        option, kind, port = visits.option[way], visits.kind[way], visits.port[way]
        by_option[option] = min(by_option[option], price[way])
        least_s = min(visits.inside_s[size, kind], visits.side_s[size, port])
        message_s[option] = min(message_s[option], least_s)
    saved = np.zeros(len(ahead))
    least = least_ahead(
        stage_s, by_option, message_s, message_s, per_second, tau_s, t.dense, ahead, saved
    )
    for option in range(options):
        message = 2 * per_second * message_s[option]
        for blocks in range(len(saved)):
            walk.dearest[option, blocks] = limit - least + saved[blocks] - message
    return least < limit


@allocating
def cheapest_walk(
    t: Tables,
    visits: Visits,
    size: int,
    stage_s: Floats,
    tau_s: float,
    price: Floats,
    per_second: float,
    most_blocks: Ints,
    limit: float,
    walk: Walk,
) -> float:
    """The least cost of a pipeline within tau; infinite if none is below the limit.

    Args:
        t: what it prices with.
        visits: what stages there can be.
        size: index of the micro-batch size.
        stage_s: of `column_pricing.stage_seconds`, for that size.
        tau_s: no stage is slower.
        price: [E] of a TP group.
        per_second: price of a second of any stage.
        most_blocks: [O, L + 1] of a stage in front of so many blocks.
        limit: dearer ones are of no use.
        walk: takes the pipelines of each depth.
    """
    layers, deepest, dense = stage_s.shape[4] - 1, stage_s.shape[1], t.dense
    walk.cost[:] = math.inf
    ahead = np.zeros(layers + 1)
    if not prepare(t, visits, size, stage_s, tau_s, price, per_second, limit, ahead, walk):
        return math.inf
    anything = np.full_like(walk.dearest, math.inf)
    sources, span, values, stages = walk.sources, walk.span, walk.values, walk.stages
    ports, merged = visits.crossing_s.shape[1], len(sources) - 1
    for position in range(deepest):
        if position == 0:
            sources[:], span[:] = math.inf, 0
            sources[:ports, 0], span[:ports, 1] = 0.0, 1
        elif not go_on(visits, walk, position, size, per_second, ahead, limit):
            break
        values[position + 1] = math.inf
        dearest = walk.dearest if position else anything  # none has a message behind it
        for way in range(len(price)):
            option, kind, port = visits.option[way], visits.kind[way], visits.port[way]
            tp, gpus, empty = t.option_tp[option], visits.gpus[kind], walk.state[kind]
            side_s, inside_s = visits.side_s[size, port], visits.inside_s[size, kind]
            for is_inside in range(2):
                source, rest_s = port, tau_s - (side_s if position else 0.0)
                if is_inside:
                    source, rest_s = merged, tau_s - inside_s
                    if position == 0 or tp >= gpus:
                        break
                    if not merge_visits(walk, empty + 1, empty + gpus - tp + 1):
                        break
                for pair in range(1 + max(1, gpus - tp)):
                    target, within_s = port, rest_s - side_s
                    if pair == 0:
                        put_first(
                            walk,
                            source,
                            price[way],
                            per_second,
                            stage_s,
                            option,
                            position,
                            rest_s,
                            most_blocks,
                            dense,
                            way,
                            is_inside,
                        )
                    else:  # the message in front stays as well
                        target, within_s = empty + tp, rest_s - inside_s
                        if is_inside:
                            source, target = empty + pair, empty + pair + tp
                        if tp >= gpus or target >= empty + gpus or (pair > 1 and not is_inside):
                            break
                    put_stages(
                        sources,
                        source,
                        span,
                        price[way],
                        per_second,
                        stage_s,
                        option,
                        position,
                        within_s,
                        most_blocks,
                        dearest,
                        dense,
                        way,
                        is_inside,
                        values,
                        stages,
                        target,
                    )
    return float(np.min(walk.cost))
