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

from planner.kernel.jit import jit
from planner.kernel.tables import Floats, Ints, Tables


class Chains(NamedTuple):
    """Where the dynamic programme works, and what it leaves.

    Attributes:
        value: [P + 1, T, L + 1] cheapest chain of stages.
        onward: [T, L + 1] the same with the edge to one more stage in front.
        onward_type: [P, T, L + 1] type behind that edge.
        stage: [P, T, L + 1] front stage of the chain: option * (L + 1) + blocks.
        cost: [P] of the cheapest whole pipeline with so many stages, less one.
        first_option: [P] its first stage.
        first_blocks: [P].
    """

    value: Floats
    onward: Floats
    onward_type: Ints
    stage: Ints
    cost: Floats
    first_option: Ints
    first_blocks: Ints


def new_chains(deepest: int, layers: int, types: int) -> Chains:
    """Room for one run of the dynamic programme."""
    return Chains(
        np.zeros((deepest + 1, types, layers + 1)),
        np.zeros((types, layers + 1)),
        np.zeros((deepest, types, layers + 1), np.int64),
        np.zeros((deepest, types, layers + 1), np.int64),
        np.zeros(deepest),
        np.zeros(deepest, np.int64),
        np.zeros(deepest, np.int64),
    )


@jit
def least_rate(
    stage_s: Floats, price: Floats, per_second: float, tau_s: float, deepest: int
) -> float:
    """The least cost of a block of the second kind in any stage before the last."""
    least = math.inf
    position = min(1, deepest - 1)
    for option in range(len(price)):
        if price[option] == math.inf:
            continue
        for blocks in range(1, stage_s.shape[4]):
            seconds = stage_s[option, position, 0, 0, blocks]
            if seconds > tau_s:
                break
            least = min(least, (price[option] + per_second * seconds) / blocks)
    return least


@jit
def layers_at_end(stage_s: Floats, price: Floats, tau_s: float) -> int:
    """The most blocks that a last stage can hold."""
    most = 0
    for option in range(len(price)):
        if price[option] < math.inf:
            while most + 1 < stage_s.shape[4]:
                alone = min(stage_s[option, 0, 0, 0, most + 1], stage_s[option, 0, 1, 0, most + 1])
                if alone > tau_s:
                    break
                most += 1
    return most


@jit
def go_onward(
    chains: Chains, position: int, edge_s: Floats, per_second: float, ahead: Floats, limit: float
) -> bool:
    """Fill `onward` with the chains of `position` stages; whether one can stay below the limit.

    Args:
        chains: whose values of that many stages hold.
        position: of the stage that comes next.
        edge_s: [T, T] a message from the first to the second.
        per_second: price of a second of any stage.
        ahead: [L + 1] what the blocks that are not covered cost at least.
        limit: dearer ones are of no use.
    """
    reached = False
    types = len(edge_s)
    for kind in range(types):
        onward, back = chains.onward[kind], chains.onward_type[position, kind]
        onward[:] = math.inf
        for behind in range(types):
            edge = 2 * per_second * edge_s[kind, behind]
            value = chains.value[position, behind]
            for covered in range(len(value)):
                cost = value[covered] + edge
                is_less = cost < onward[covered]
                onward[covered] = cost if is_less else onward[covered]
                back[covered] = behind if is_less else back[covered]
        for covered in range(len(onward)):
            if onward[covered] + ahead[covered] >= limit:
                onward[covered] = math.inf
            else:
                reached = True
    return reached


@jit
def put_in_front(
    onward: Floats, added: float, blocks: int, most: Ints, code: int, value: Floats, stage: Ints
) -> None:
    """Put a stage of so many blocks in front of every chain that is shorter than the rest.

    Args:
        onward: [L + 1] cost of chains by blocks covered.
        added: what the stage costs.
        blocks: of the stage.
        most: [L + 1] blocks that it may hold in front of so many.
        code: of the stage.
        value: [L + 1] cheapest chains with it, where it is better.
        stage: [L + 1] their front stages.
    """
    ends, codes = value[blocks:-1], stage[blocks:-1]
    for covered in range(len(ends)):
        cost = onward[covered] + added
        is_less = (cost < ends[covered]) & (most[covered] >= blocks)
        ends[covered] = cost if is_less else ends[covered]
        codes[covered] = code if is_less else codes[covered]


@jit
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
    rate = least_rate(stage_s, price, per_second, tau_s, deepest)
    if rate * max(0, layers - dense - layers_at_end(stage_s, price, tau_s)) >= limit:
        return math.inf
    ahead = np.zeros(layers + 1)
    for covered in range(layers + 1 - dense):
        ahead[covered] = rate * (layers - covered - dense)
    best = math.inf
    for position in range(deepest):
        if position == 0:
            chains.onward[:] = math.inf
            chains.onward[:, 0] = 0.0
        elif not go_onward(chains, position, edge_s, per_second, ahead, limit):
            break
        chains.value[position + 1] = math.inf
        for option in range(len(price)):
            if price[option] == math.inf:
                continue
            kind = t.option_type[option]
            behind_s = side_s[kind] if position else 0.0
            within_s = tau_s - behind_s - side_s[kind]
            first_within_s = tau_s - behind_s
            onward, most = chains.onward[kind], most_blocks[option]
            value, stage = chains.value[position + 1, kind], chains.stage[position, kind]
            if dense == 0:  # in the middle or at the end
                for blocks in range(1, layers):
                    seconds = stage_s[option, position, 0, 0, blocks]
                    if seconds > within_s:
                        break
                    added = price[option] + per_second * seconds
                    code = option * (layers + 1) + blocks
                    put_in_front(onward, added, blocks, most, code, value, stage)
            for covered in range(layers):
                start = onward[covered]
                if start == math.inf:
                    continue
                start += price[option]
                left = layers - covered
                cap = most[covered]
                for blocks in range(1, min(left, cap + 1) if dense else 0):
                    first = max(0, min(left, dense) - (left - blocks))
                    seconds = stage_s[option, position, 0, first, blocks - first]
                    if seconds > within_s:
                        break
                    cost = start + per_second * seconds
                    if cost < value[covered + blocks]:
                        value[covered + blocks] = cost
                        stage[covered + blocks] = option * (layers + 1) + blocks
                if cap < left:
                    continue
                first = min(left, dense)
                seconds = stage_s[option, position, 1, first, left - first]
                if seconds <= first_within_s:
                    cost = start + per_second * seconds
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
