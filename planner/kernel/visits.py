"""The cheapest pipeline where messages inside a node and between nodes are told apart.

Stages in a row on one node are a visit (`planner.visits`).  The shortest path of `chains` gets a
state for it: whether the message in front of a stage stays on the node, and then how many GPUs the
visit has by now.
Invariant: a pipeline of any plan costs at most what its relaxed visits cost.
Source: research on plan search (column generation).
Legend: E ways to use an option, K kinds, Q ports, U GPUs, O options, P positions, Z sizes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.kernel.chains import layers_at_end, least_rate
from planner.kernel.jit import jit
from planner.kernel.tables import Floats, Ints, Tables


class Visits(NamedTuple):
    """What stages there can be, by option and by how busy their node is.

    Attributes:
        option: [E].
        kind: [E] of the visit.
        port: [E] stages of one port send at one rate between nodes.
        room: [E, O] GPUs by row of room, with the share of the idle ones.
        gpus: [K] most of a visit; 0: not counted, and messages of the kind are as if inside.
        crossing_s: [Z, Q, Q] least seconds of a message, both ways; infinite: none can be.
        inside_s: [Z, K] the same inside the node.
        side_s: [Z, Q] least seconds of a message between nodes with any other port.
    """

    option: Ints
    kind: Ints
    port: Ints
    room: Floats
    gpus: Ints
    crossing_s: Floats
    inside_s: Floats
    side_s: Floats


class Walk(NamedTuple):
    """Where the shortest path is found, and what it leaves.

    Attributes:
        left, left_stage: [P + 1, Q, L + 1] cheapest chain whose message in front leaves the node,
            and its front stage, as `stage_code`.
        stays: [P + 1, K, U, L + 1] cheapest whose message in front stays, by GPUs of the visit.
        stays_stage: [P + 1, K, U, L + 1] its front stage.
        arrives: [Q, L + 1] `left` with the message to one more stage.
        arrives_from: [P, Q, L + 1] port behind it.
        within: [K, U, L + 1] `stays` with the message.
        merged: [L + 1] the best of `within`.
        cost, first: [P] of the cheapest whole pipeline with so many stages, less one.
    """

    left: Floats
    left_stage: Ints
    stays: Floats
    stays_stage: Ints
    arrives: Floats
    arrives_from: Ints
    within: Floats
    merged: Floats
    cost: Floats
    first: Ints


def new_walk(visits: Visits, deepest: int, layers: int) -> Walk:
    """Room for one run."""
    kinds, ports = len(visits.gpus), visits.crossing_s.shape[1]
    most = max(1, int(visits.gpus.max(initial=0)))
    return Walk(
        np.zeros((deepest + 1, ports, layers + 1)),
        np.zeros((deepest + 1, ports, layers + 1), np.int64),
        np.full((deepest + 1, kinds, most, layers + 1), np.inf),
        np.zeros((deepest + 1, kinds, most, layers + 1), np.int64),
        np.zeros((ports, layers + 1)),
        np.zeros((deepest, ports, layers + 1), np.int64),
        np.full((kinds, most, layers + 1), np.inf),
        np.zeros(layers + 1),
        np.zeros(deepest),
        np.zeros(deepest, np.int64),
    )


@jit
def stage_code(way: int, blocks: int, stays: int, layers: int) -> int:
    """A stage and whether the message behind it stays on its node, as one number."""
    return (way * (layers + 1) + blocks) * 2 + stays


@jit
def go_on(
    visits: Visits,
    walk: Walk,
    position: int,
    crossing_s: Floats,
    inside_s: Floats,
    per_second: float,
    ahead: Floats,
    limit: float,
) -> bool:
    """Add the message to the stage at that position; whether a chain can stay below the limit.

    Args:
        visits: what stages there can be.
        walk: holds the chains of that many stages.
        position: of the stage that comes next.
        crossing_s: [Q, Q].
        inside_s: [K].
        per_second: price of a second of any stage.
        ahead: [L + 1] what the blocks that are not covered cost at least.
        limit: dearer ones are of no use.
    """
    reached = False
    ports = len(crossing_s)
    for port in range(ports):
        arrives, back = walk.arrives[port], walk.arrives_from[position, port]
        arrives[:] = math.inf
        for behind in range(ports):
            if crossing_s[port, behind] == math.inf:
                continue
            edge = 2 * per_second * crossing_s[port, behind]
            value = walk.left[position, behind]
            for covered in range(len(value)):
                cost = value[covered] + edge
                is_less = cost < arrives[covered]
                arrives[covered] = cost if is_less else arrives[covered]
                back[covered] = behind if is_less else back[covered]
        for covered in range(len(arrives)):
            is_far = arrives[covered] + ahead[covered] >= limit
            arrives[covered] = math.inf if is_far else arrives[covered]
            reached = reached or not is_far
    for kind in range(len(visits.gpus)):
        edge = 2 * per_second * inside_s[kind]
        for gpus in range(1, visits.gpus[kind]):
            within = walk.within[kind, gpus]
            for covered in range(len(within)):
                within[covered] = walk.stays[position, kind, gpus, covered] + edge
                if within[covered] + ahead[covered] >= limit:
                    within[covered] = math.inf
                else:
                    reached = True
    return reached


@jit
def put_stages(
    source: Floats,
    price: float,
    per_second: float,
    seconds: Floats,
    within_s: float,
    most: Ints,
    dense: int,
    way: int,
    stays: int,
    value: Floats,
    stage: Ints,
) -> None:
    """Put stages of every size, none of them the first, in front of chains.

    Args:
        source: [L + 1] chains with the message, by blocks covered.
        price: of the stage's GPUs.
        per_second: price of its seconds.
        seconds: [dense + 1, L + 1] of the stage by blocks of both kinds.
        within_s: no slower.
        most: [L + 1] blocks that it may hold in front of so many.
        dense: blocks of the first kind.
        way: of the stage.
        stays: 1: the message behind it stays on its node.
        value: [L + 1] cheapest chains, where it is better.
        stage: [L + 1] their front stages.
    """
    layers = len(source) - 1
    if dense == 0:
        start, stop = 0, layers
        while start < stop and source[start] == math.inf:
            start += 1
        while start < stop and source[stop - 1] == math.inf:
            stop -= 1
        for blocks in range(1, layers - start):
            if seconds[0, blocks] > within_s:
                break
            added = price + per_second * seconds[0, blocks]
            code = stage_code(way, blocks, stays, layers)
            for covered in range(start, min(stop, layers - blocks)):
                cost = source[covered] + added
                is_less = (cost < value[covered + blocks]) & (most[covered] >= blocks)
                value[covered + blocks] = cost if is_less else value[covered + blocks]
                stage[covered + blocks] = code if is_less else stage[covered + blocks]
        return
    for covered in range(layers):
        if source[covered] == math.inf:
            continue
        left = layers - covered
        for blocks in range(1, min(left, most[covered] + 1)):
            first = max(0, min(left, dense) - (left - blocks))
            if seconds[first, blocks - first] > within_s:
                break
            cost = source[covered] + price + per_second * seconds[first, blocks - first]
            if cost < value[covered + blocks]:
                value[covered + blocks] = cost
                stage[covered + blocks] = stage_code(way, blocks, stays, layers)


@jit
def put_first(
    source: Floats,
    price: float,
    per_second: float,
    seconds: Floats,
    within_s: float,
    most: Ints,
    dense: int,
    way: int,
    stays: int,
    position: int,
    walk: Walk,
) -> None:
    """Put a first stage with all blocks that are left in front of chains."""
    layers = len(source) - 1
    for covered in range(layers):
        left = layers - covered
        if source[covered] == math.inf or most[covered] < left:
            continue
        first = min(left, dense)
        if seconds[first, left - first] <= within_s:
            cost = source[covered] + price + per_second * seconds[first, left - first]
            if cost < walk.cost[position]:
                walk.cost[position] = cost
                walk.first[position] = stage_code(way, left, stays, layers)


@jit
def best_within(visits: Visits, walk: Walk, kind: int, tp: int) -> bool:
    """Merge the chains that leave so many GPUs on the node; whether there is any."""
    walk.merged[:] = math.inf
    for gpus in range(1, visits.gpus[kind] - tp + 1):
        for covered in range(len(walk.merged)):
            walk.merged[covered] = min(walk.merged[covered], walk.within[kind, gpus, covered])
    return bool(np.min(walk.merged) < math.inf)


@jit
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
    crossing_s, inside_s = visits.crossing_s[size], visits.inside_s[size]
    walk.cost[:] = math.inf
    by_option = np.full(len(t.option_tp), math.inf)
    for way in range(len(price)):
        by_option[visits.option[way]] = min(by_option[visits.option[way]], price[way])
    rate = least_rate(stage_s, by_option, per_second, tau_s, deepest)
    if rate * max(0, layers - dense - layers_at_end(stage_s, by_option, tau_s)) >= limit:
        return math.inf
    ahead = np.zeros(layers + 1)
    for covered in range(layers + 1 - dense):
        ahead[covered] = rate * (layers - covered - dense)
    for position in range(deepest):
        if position == 0:
            walk.arrives[:] = math.inf
            walk.arrives[:, 0] = 0.0
        elif not go_on(visits, walk, position, crossing_s, inside_s, per_second, ahead, limit):
            break
        walk.left[position + 1] = math.inf
        for kind in range(len(visits.gpus)):
            walk.stays[position + 1, kind, : max(1, visits.gpus[kind])] = math.inf
        for way in range(len(price)):
            option, kind, port = visits.option[way], visits.kind[way], visits.port[way]
            tp, gpus = t.option_tp[option], visits.gpus[kind]
            rows, firsts = stage_s[option, position, 0], stage_s[option, position, 1]
            most, side_s = most_blocks[option], visits.side_s[size, port]
            left, left_stage = walk.left[position + 1, port], walk.left_stage[position + 1, port]
            stays = walk.stays[position + 1, kind]
            stays_stage = walk.stays_stage[position + 1, kind]
            for is_inside in range(2):
                if is_inside:
                    if position == 0 or tp >= gpus or not best_within(visits, walk, kind, tp):
                        break
                    source, rest_s = walk.merged, tau_s - inside_s[kind]
                else:
                    source, rest_s = walk.arrives[port], tau_s - (side_s if position else 0.0)
                put_stages(
                    source,
                    price[way],
                    per_second,
                    rows,
                    rest_s - side_s,
                    most,
                    dense,
                    way,
                    is_inside,
                    left,
                    left_stage,
                )
                put_first(
                    source,
                    price[way],
                    per_second,
                    firsts,
                    rest_s,
                    most,
                    dense,
                    way,
                    is_inside,
                    position,
                    walk,
                )
                rest_s -= inside_s[kind]
                if not is_inside and tp < gpus:
                    put_stages(
                        source,
                        price[way],
                        per_second,
                        rows,
                        rest_s,
                        most,
                        dense,
                        way,
                        0,
                        stays[tp],
                        stays_stage[tp],
                    )
                for before in range(1, gpus - tp if is_inside else 0):
                    put_stages(
                        walk.within[kind, before],
                        price[way],
                        per_second,
                        rows,
                        rest_s,
                        most,
                        dense,
                        way,
                        1,
                        stays[before + tp],
                        stays_stage[before + tp],
                    )
    return float(np.min(walk.cost))


@jit
def read_walk(
    t: Tables, visits: Visits, walk: Walk, position: int, ways: Ints, blocks: Ints
) -> None:
    """The stages of the cheapest pipeline with `position` + 1 of them, the first one first."""
    layers = walk.left.shape[2] - 1
    code, covered, gpus = walk.first[position], layers, 0
    for index in range(position + 1):
        at = position - index
        is_inside = code % 2
        way, held = code // 2 // (layers + 1), code // 2 % (layers + 1)
        ways[index], blocks[index] = way, held
        covered -= held
        if at == 0:
            return
        kind = visits.kind[way]
        tp = t.option_tp[visits.option[way]]
        if not is_inside:
            behind = walk.arrives_from[at, visits.port[way], covered]
            code, gpus = walk.left_stage[at, behind, covered], 0
            continue
        before = gpus - tp
        if gpus == 0:  # its own message leaves the node: the best visit that has room for it
            before = 1
            for other in range(2, visits.gpus[kind] - tp + 1):
                if walk.stays[at, kind, other, covered] < walk.stays[at, kind, before, covered]:
                    before = other
        code, gpus = walk.stays_stage[at, kind, before, covered], before
