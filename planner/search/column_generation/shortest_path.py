"""The cheapest pipeline within a bottleneck at given prices: a shortest path from its end.

For a given bottleneck tau, prices and seconds add up over stages, so a pipeline is a path over the
states (stages so far, node class in front, blocks covered).  It starts at the last stage, because
from there the position says how many micro-batches a stage has in flight.
Invariant: every path is a pipeline within tau and memory at its in-flight counts.
Source: labels of a shortest-path pricing problem (Desaulniers et al., Column Generation, 2005).
Legend: O options, P positions from the end, T node classes, D dense blocks, L blocks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.jit import jit
from planner.estimator.tables import Floats, Ints, Tables
from planner.search.column_generation.gradient_limit import GradientLimit, gradient_seconds


@by_reference
class Labels(NamedTuple):
    """What the shortest path works in, and what it leaves.

    Attributes:
        stage: [T, D + 1, L + 1] the cheapest stage that is not the first, by its dense blocks and
            by all its blocks.
        option: [T, D + 1, L + 1] of that stage.
        value: [T, L + 1] the cheapest path, by its front class and the blocks covered.
        onward: [T, L + 1] the same with the message to one more stage in front.
        front: [P, T, L + 1] first stage of the path in `value`: option * (L + 1) + blocks.
        behind: [P, T, L + 1] class behind the message in `onward`.
        cost: [P] of the cheapest whole pipeline of so many stages, less one.
        first_option: [P] of its first stage.
        first_blocks: [P] of its first stage.
    """

    stage: Floats
    option: Ints
    value: Floats
    onward: Floats
    front: Ints
    behind: Ints
    cost: Floats
    first_option: Ints
    first_blocks: Ints


def new_labels(deepest: int, types: int, dense: int, layers: int) -> Labels:
    """Room for paths of so many stages."""
    by_blocks, by_position = (types, dense + 1, layers + 1), (deepest, types, layers + 1)
    return Labels(
        np.zeros(by_blocks),
        np.zeros(by_blocks, np.int64),
        np.zeros((types, layers + 1)),
        np.zeros((types, layers + 1)),
        np.zeros(by_position, np.int64),
        np.zeros(by_position, np.int64),
        np.zeros(deepest),
        np.zeros(deepest, np.int64),
        np.zeros(deepest, np.int64),
    )


@jit
def cheapest_pipelines(
    t: Tables,
    stage_s: Floats,
    edge_s: Floats,
    limit: GradientLimit,
    tau_s: float,
    price: Floats,
    rate: float,
    most: float,
    labels: Labels,
) -> float:
    """The least cost of a pipeline within tau; infinite if none is below `most`.

    Args:
        t: what it prices with.
        stage_s: [O, P, 2, D + 1, L + 1] of `pricing_problem.stage_seconds`.
        edge_s: [T, T] a message from the first class to the second, which both stages wait for.
        limit: of the gradient sum of a stage.
        tau_s: no stage is slower.
        price: [O] of a TP group; infinite: not to be used.
        rate: price of a second of any stage.
        most: dearer ones are of no use.
        labels: takes the cheapest pipeline of every depth.
    """
    types, width = labels.value.shape
    per_block = least_per_block(t, stage_s, edge_s, tau_s, price, rate)
    best = math.inf
    for position in range(len(labels.cost)):
        labels.cost[position] = math.inf
    for position in range(len(labels.cost)):
        is_open = True
        if position == 0:
            for kind in range(types):
                for covered in range(width):
                    labels.onward[kind, covered] = math.inf if covered else 0.0
        else:
            is_open = add_messages(edge_s, rate, per_block, most, position, labels)
        if not is_open:
            break
        cheapest_stages(t, stage_s, edge_s, limit, tau_s, price, rate, position, labels)
        put_in_front(t, position, labels)
        close_pipelines(t, stage_s, edge_s, limit, tau_s, price, rate, position, labels)
        best = min(best, labels.cost[position])
    return best if best < most else math.inf


@jit
def cheapest_stages(
    t: Tables,
    stage_s: Floats,
    edge_s: Floats,
    limit: GradientLimit,
    tau_s: float,
    price: Floats,
    rate: float,
    position: int,
    labels: Labels,
) -> None:
    """Fill `stage` and `option` for stages at that position that are not the first."""
    types, most_dense, width = labels.stage.shape
    for kind in range(types):
        for dense in range(most_dense):
            for blocks in range(width):
                labels.stage[kind, dense, blocks] = math.inf
    for option in range(len(price)):
        kind = t.option_type[option]
        within_s = tau_s - (2.0 if position else 1.0) * edge_s[kind, kind]
        for dense in range(most_dense if price[option] < math.inf else 0):
            for others in range(0 if dense else 1, width - dense):
                seconds = stage_s[option, position, 0, dense, others]
                sum_s = gradient_seconds(limit, option, dense + others, 0, position == 0)
                if seconds > within_s or sum_s > limit.most_s:
                    break
                cost = price[option] + rate * seconds
                if cost < labels.stage[kind, dense, dense + others]:
                    labels.stage[kind, dense, dense + others] = cost
                    labels.option[kind, dense, dense + others] = option


@jit
def least_per_block(
    t: Tables, stage_s: Floats, edge_s: Floats, tau_s: float, price: Floats, rate: float
) -> float:
    """The least that a stage in front of another one costs for each of its blocks.

    Nearest to the end, where the least memory is taken, and with a message on one side only.
    """
    least = math.inf
    position = min(1, stage_s.shape[1] - 1)
    for option in range(len(price)):
        kind = t.option_type[option]
        for dense in range(stage_s.shape[3] if price[option] < math.inf else 0):
            for others in range(0 if dense else 1, stage_s.shape[4] - dense):
                seconds = stage_s[option, position, 0, dense, others]
                if seconds > tau_s - edge_s[kind, kind]:
                    break
                least = min(least, (price[option] + rate * seconds) / (dense + others))
    return least


@jit
def add_messages(
    edge_s: Floats, rate: float, per_block: float, most: float, position: int, labels: Labels
) -> bool:
    """Fill `onward` from `value`; whether any path can still become a pipeline below `most`.

    What a path does not cover yet costs at least so much for each block (completion bound).
    """
    types, width = labels.value.shape
    is_open = False
    for kind in range(types):
        for covered in range(width):
            labels.onward[kind, covered] = math.inf
        for behind in range(types):
            message = 2.0 * rate * edge_s[kind, behind]
            for covered in range(width):
                cost = labels.value[behind, covered] + message
                if cost < labels.onward[kind, covered]:
                    labels.onward[kind, covered] = cost
                    labels.behind[position, kind, covered] = behind
        for covered in range(width):
            if labels.onward[kind, covered] + (width - 1 - covered) * per_block >= most:
                labels.onward[kind, covered] = math.inf
            is_open = is_open or labels.onward[kind, covered] < math.inf
    return is_open


@jit
def put_in_front(t: Tables, position: int, labels: Labels) -> None:
    """Fill `value` with one more stage in front of all paths of `onward`; a block is left over.

    A stage has dense blocks where it reaches into the first `t.dense` blocks of the model.
    """
    types, width = labels.value.shape
    for kind in range(types):
        for covered in range(width):
            labels.value[kind, covered] = math.inf
        start, stop = 0, width - 1
        while start < stop and labels.onward[kind, start] == math.inf:
            start += 1
        while start < stop and labels.onward[kind, stop - 1] == math.inf:
            stop -= 1
        for blocks in range(1, width - 1 - start):
            last = min(stop, width - 1 - blocks)
            plain = max(start, min(last, width - t.dense - blocks))  # from here on some are dense
            extend(position, kind, 0, blocks, start, plain, labels)
            for covered in range(plain, last):
                dense = min(blocks, covered + blocks - (width - 1 - t.dense))
                extend(position, kind, dense, blocks, covered, covered + 1, labels)


@jit
def extend(
    position: int, kind: int, dense: int, blocks: int, start: int, stop: int, labels: Labels
) -> None:
    """Put a stage of so many blocks in front of the paths that cover from `start` on to `stop`.

    Indices have no sign: to ask whether one is negative takes as long as the rest.
    """
    added = labels.stage[kind, dense, blocks]
    if added == math.inf:
        return
    code = labels.option[kind, dense, blocks] * labels.value.shape[1] + blocks
    more = np.uint64(blocks)
    for covered in range(np.uint64(start), np.uint64(stop)):
        at = covered + more
        cost = labels.onward[kind, covered] + added
        is_less = cost < labels.value[kind, at]
        labels.value[kind, at] = cost if is_less else labels.value[kind, at]
        before = labels.front[position, kind, at]
        labels.front[position, kind, at] = code if is_less else before


@jit
def close_pipelines(
    t: Tables,
    stage_s: Floats,
    edge_s: Floats,
    limit: GradientLimit,
    tau_s: float,
    price: Floats,
    rate: float,
    position: int,
    labels: Labels,
) -> None:
    """Fill `cost` with the best first stage in front of the paths of `onward`, of all that is left.

    It is the only one at position 0.
    """
    width = labels.value.shape[1]
    for option in range(len(price)):
        kind = t.option_type[option]
        within_s = tau_s - (edge_s[kind, kind] if position else 0.0)
        for covered in range(width - 1 if price[option] < math.inf else 0):
            left = width - 1 - covered
            dense = min(left, t.dense)
            seconds = stage_s[option, position, 1, dense, left - dense]
            cost = labels.onward[kind, covered] + price[option] + rate * seconds
            sum_s = gradient_seconds(limit, option, left, 1, position == 0)
            if seconds <= within_s and sum_s <= limit.most_s and cost < labels.cost[position]:
                labels.cost[position] = cost
                labels.first_option[position] = option
                labels.first_blocks[position] = left


@jit
def read_pipeline(t: Tables, labels: Labels, position: int, options: Ints, blocks: Ints) -> None:
    """The stages of the cheapest pipeline with `position` + 1 of them, the first one first."""
    width = labels.value.shape[1]
    options[0] = labels.first_option[position]
    blocks[0] = labels.first_blocks[position]
    covered = width - 1 - blocks[0]
    kind = t.option_type[options[0]]
    for s in range(1, position + 1):
        kind = labels.behind[position - s + 1, kind, covered]
        code = labels.front[position - s, kind, covered]
        options[s], blocks[s] = code // width, code % width
        covered -= blocks[s]
