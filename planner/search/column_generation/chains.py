"""The cheapest pipeline at given prices, by a dynamic programme from the last stage on.

For a given bottleneck tau, prices and seconds add up over stages, so the cheapest chain of stages
is a shortest path over (position from the end, GPU type in front, blocks covered): from the end,
because there the position says how many micro-batches a stage has in flight.
Invariant: a chain is feasible within tau and memory at its in-flight counts.
Source: research on plan search (column generation).
Legend: O options, P positions, L blocks, T GPU types.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.jit import allocating, jit
from planner.estimator.tables import Floats, Ints, Tables
from planner.search.column_generation.ahead import least_ahead


@by_reference
class Chains(NamedTuple):
    """Where the dynamic programme works, and what it leaves.

    Attributes:
        value: [P + 1, T, L + 1] cheapest chain of stages.
        onward: [T, L + 1] the same with the edge to one more stage in front.
        span: [T, 2] the fewest blocks that chains in `onward` cover, and the most, plus 1.
        onward_type: [P, T, L + 1] type behind that edge.
        stage: [P, T, L + 1] front stage of the chain: option * (L + 1) + blocks.
        cost: [P] of the cheapest whole pipeline with so many stages, less one.
        first_option: [P] its first stage.
        first_blocks: [P].
        added: [O, L + 1] what a stage of so many blocks costs; infinite: another one costs less.
        reach: [O] blocks from which on a stage is too slow.
        instead: [O, O] whether the first may stand wherever the second may, on the same type.
    """

    value: Floats
    onward: Floats
    span: Ints
    onward_type: Ints
    stage: Ints
    cost: Floats
    first_option: Ints
    first_blocks: Ints
    added: Floats
    reach: Ints
    instead: Ints


def new_chains(deepest: int, layers: int, types: int, options: int) -> Chains:
    """Room for one run of the dynamic programme."""
    return Chains(
        np.zeros((deepest + 1, types, layers + 1)),
        np.zeros((types, layers + 1)),
        np.zeros((types, 2), np.int64),
        np.zeros((deepest, types, layers + 1), np.int64),
        np.zeros((deepest, types, layers + 1), np.int64),
        np.zeros(deepest),
        np.zeros(deepest, np.int64),
        np.zeros(deepest, np.int64),
        np.zeros((options, layers + 1)),
        np.zeros(options, np.int64),
        np.zeros((options, options), np.int64),
    )


@jit
def compare_options(t: Tables, most_blocks: Ints, chains: Chains) -> None:
    """Fill `instead`, from the most blocks [O, L + 1] of a stage in front of so many."""
    for one in range(len(most_blocks)):
        for other in range(len(most_blocks)):
            is_instead = one != other and t.option_type[one] == t.option_type[other]
            for covered in range(most_blocks.shape[1] if is_instead else 0):
                is_instead = is_instead and most_blocks[one, covered] >= most_blocks[other, covered]
            chains.instead[one, other] = is_instead


@jit
def price_stages(
    price: Floats,
    per_second: float,
    stage_s: Floats,
    within_s: Floats,
    position: int,
    dearest: Floats,
    chains: Chains,
) -> None:
    """Fill `added` with stages that are not the first, and no dearer than of use.

    Of two that fit the same places the dearer one stays out as well.

    Args:
        price: [O] of a TP group.
        per_second: price of a second of any stage.
        stage_s: of `column_pricing.stage_seconds`.
        within_s: [O] no slower.
        position: of the stage.
        dearest: [O, L + 1] what a stage may cost.
        chains: takes the costs, and from where on stages are too slow.
    """
    added, reach, instead = chains.added, chains.reach, chains.instead
    for option in range(len(price)):
        blocks = 1
        while blocks < added.shape[1] - 1:
            seconds = stage_s[option, position, 0, 0, blocks]
            if seconds > within_s[option]:
                break
            cost = price[option] + per_second * seconds
            added[option, blocks] = cost if cost < dearest[option, blocks] else math.inf
            blocks += 1
        reach[option] = blocks if price[option] < math.inf else 0
    for one in range(len(price)):
        for other in range(len(price)):
            if instead[one, other]:
                for blocks in range(1, min(reach[one], reach[other])):
                    is_dear = added[one, blocks] <= added[other, blocks]
                    added[other, blocks] = math.inf if is_dear else added[other, blocks]


@jit
def find_span(sources: Floats, state: int, span: Ints) -> bool:
    """Note between how many blocks covered a state has chains; whether it has any."""
    start, stop = 0, sources.shape[1]
    while start < stop and sources[state, start] == math.inf:
        start += 1
    while start < stop and sources[state, stop - 1] == math.inf:
        stop -= 1
    span[state, 0], span[state, 1] = start, stop
    return start < stop


@jit
def go_onward(
    chains: Chains,
    position: int,
    edge_s: Floats,
    message_s: Floats,
    per_second: float,
    ahead: Floats,
    limit: float,
) -> bool:
    """Fill `onward` with the chains of `position` stages; whether one can stay below the limit.

    Args:
        chains: whose values of that many stages hold.
        position: of the stage that comes next.
        edge_s: [T, T] a message from the first to the second.
        message_s: [T] the least of them, which `ahead` counts as well.
        per_second: price of a second of any stage.
        ahead: [L + 1] what the blocks that are not covered cost at least.
        limit: dearer ones are of no use.
    """
    reached = False
    values, onward, back, span = chains.value, chains.onward, chains.onward_type, chains.span
    types, width = onward.shape
    for kind in range(types):
        for covered in range(width):
            onward[kind, covered] = math.inf
        for behind in range(types):
            edge = 2 * per_second * edge_s[kind, behind]
            for covered in range(width):
                cost = values[position, behind, covered] + edge
                is_less = cost < onward[kind, covered]
                onward[kind, covered] = cost if is_less else onward[kind, covered]
                before = back[position, kind, covered]
                back[position, kind, covered] = behind if is_less else before
        within = limit + 2 * per_second * message_s[kind]
        for covered in range(width):
            is_far = onward[kind, covered] + ahead[covered] >= within
            onward[kind, covered] = math.inf if is_far else onward[kind, covered]
        reached = find_span(onward, kind, span) or reached
    return reached


@jit
def put_in_front(
    sources: Floats,
    kind: int,
    span: Ints,
    added: float,
    blocks: int,
    most: Ints,
    option: int,
    values: Floats,
    stages: Ints,
    position: int,
) -> None:
    """Put a stage of so many blocks in front of every chain that is shorter than the rest.

    Whole arrays are handed over, and indices without a sign: a view of a row, or the question
    whether an index is negative, takes as long as a dozen additions.

    Args:
        sources: [T, L + 1] cost of chains with a message, by blocks covered.
        kind: of the stage.
        span: [T, 2] of those that are finite, the last one excluded.
        added: what the stage costs.
        blocks: of the stage.
        most: [O, L + 1] blocks that it may hold in front of so many.
        option: of the stage.
        values: [P + 1, T, L + 1] cheapest chains with it, where it is better.
        stages: [P, T, L + 1] their front stages.
        position: of the stage.
    """
    width = values.shape[2]
    stop = min(span[kind, 1], width - 1 - blocks)
    more, code = np.uint64(blocks), option * width + blocks
    for covered in range(np.uint64(span[kind, 0]), np.uint64(max(0, stop))):
        at = covered + more
        cost = sources[kind, covered] + added
        is_less = (cost < values[position + 1, kind, at]) & (most[option, covered] >= blocks)
        before = values[position + 1, kind, at]
        values[position + 1, kind, at] = cost if is_less else before
        stages[position, kind, at] = code if is_less else stages[position, kind, at]


@allocating
def cheapest_chains(
    t: Tables,
    stage_s: Floats,
    tau_s: float,
    price: Floats,
    per_second: float,
    edge_s: Floats,
    side_s: Floats,
    most_blocks: Ints,
    limit: float,
    chains: Chains,
) -> float:
    """The least cost of a pipeline within tau; infinite if none is below the limit.

    Args:
        t: what it prices with.
        stage_s: of `column_pricing.stage_seconds`.
        tau_s: no stage is slower.
        price: [O] of a TP group; infinite: not to be used.
        per_second: price of a second of any stage.
        edge_s: [T, T] a message from the first to the second, which both stages wait for.
        side_s: [T] the part of tau that a message takes from a stage of that type.
        most_blocks: [O, L + 1] of a stage in front of so many blocks.
        limit: dearer ones are of no use.
        chains: takes the chains of each depth.
    """
    layers = stage_s.shape[4] - 1
    deepest = stage_s.shape[1]
    dense = t.dense
    chains.cost[:] = math.inf
    types = len(edge_s)
    message_s = np.zeros(types + len(price))  # the least of a type, and of an option
    for kind in range(types):
        message_s[kind] = edge_s[kind].min()
    by_option, side_of, within_of = message_s[types:], np.zeros(len(price)), np.zeros(len(price))
    for option in range(len(price)):
        by_option[option] = message_s[t.option_type[option]]
        side_of[option] = side_s[t.option_type[option]]
    ahead, saved = np.zeros(layers + 1), np.zeros(layers + 1)
    least = least_ahead(stage_s, price, by_option, side_of, per_second, tau_s, dense, ahead, saved)
    if least >= limit:
        return math.inf
    values, stages, onward, span = chains.value, chains.stage, chains.onward, chains.span
    added, reach = chains.added, chains.reach
    best = math.inf
    dearest = np.full((len(price), layers + 1), math.inf)
    for position in range(deepest):
        if position == 0:
            chains.onward[:] = math.inf
            chains.onward[:, 0] = 0.0
            chains.span[:, 0], chains.span[:, 1] = 0, 1
        elif not go_onward(chains, position, edge_s, message_s, per_second, ahead, limit):
            break
        chains.value[position + 1] = math.inf
        if dense == 0:
            for option in range(len(price)):
                sides = 2 if position else 1
                within_of[option] = tau_s - sides * side_s[t.option_type[option]]
            price_stages(price, per_second, stage_s, within_of, position, dearest, chains)
            if position == 0:
                for option in range(len(price)):
                    message = 2 * per_second * by_option[option]
                    for blocks in range(1, layers):
                        dearest[option, blocks] = limit - least + saved[blocks] - message
        for option in range(len(price)):
            if price[option] == math.inf:
                continue
            kind = t.option_type[option]
            first_within_s = tau_s - (side_s[kind] if position else 0.0)
            within_s = first_within_s - side_s[kind]
            start, stop = span[kind, 0], span[kind, 1]
            if start >= stop:
                continue
            if dense == 0:  # in the middle or at the end
                for blocks in range(1, reach[option]):
                    cost = added[option, blocks]
                    if cost < math.inf:
                        put_in_front(
                            onward,
                            kind,
                            span,
                            cost,
                            blocks,
                            most_blocks,
                            option,
                            values,
                            stages,
                            position,
                        )
            for covered in range(min(stop, layers) - 1, start - 1, -1):
                cost = onward[kind, covered] + price[option]
                left = layers - covered
                cap = most_blocks[option, covered]
                for blocks in range(1, min(left, cap + 1) if dense and cost < math.inf else 0):
                    first = max(0, min(left, dense) - (left - blocks))
                    seconds = stage_s[option, position, 0, first, blocks - first]
                    if seconds > within_s:
                        break
                    whole = cost + per_second * seconds
                    if whole < values[position + 1, kind, covered + blocks]:
                        values[position + 1, kind, covered + blocks] = whole
                        stages[position, kind, covered + blocks] = option * (layers + 1) + blocks
                if cap < left:
                    continue
                first = min(left, dense)
                seconds = stage_s[option, position, 1, first, left - first]
                if seconds > first_within_s:
                    if dense == 0:
                        break  # with more blocks it takes longer
                    continue
                cost += per_second * seconds
                if cost < chains.cost[position]:
                    chains.cost[position] = cost
                    chains.first_option[position] = option
                    chains.first_blocks[position] = left
        best = min(best, chains.cost[position])
    return best


@jit
def read_chain(t: Tables, chains: Chains, position: int, options: Ints, blocks: Ints) -> None:
    """The stages of the cheapest pipeline with `position` + 1 of them, the first one first."""
    layers = chains.onward.shape[1] - 1
    covered = layers - chains.first_blocks[position]
    options[0] = chains.first_option[position]
    blocks[0] = chains.first_blocks[position]
    kind = t.option_type[options[0]]
    for ahead in range(1, position + 1):
        at = position - ahead
        kind = chains.onward_type[at + 1, kind, covered]
        options[ahead] = chains.stage[at, kind, covered] // (layers + 1)
        blocks[ahead] = chains.stage[at, kind, covered] % (layers + 1)
        covered -= blocks[ahead]
