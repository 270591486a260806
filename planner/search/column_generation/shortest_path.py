"""The cheapest pipeline within a bottleneck at given prices: a shortest path from its end.

For a given bottleneck tau, prices and seconds add up over stages, so a pipeline is a path over the
states (stages so far, node class in front, blocks covered).  It costs its stages' prices, and all
seconds of its stages at a rate of a micro-batch per tau.
Invariant: every path is a pipeline within tau and memory at its in-flight counts.
Source: labels of a shortest-path pricing problem (Desaulniers et al., Column Generation, 2005).
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Floats, Tables
from planner.search.column_generation.network import Network


@jit
def cheapest_pipelines(
    t: Tables, n: Network, q: int, size: int, tau_s: float, most: float
) -> float:
    """The least cost of a pipeline within tau; infinite if none is below `most`.

    The network then has the cheapest pipeline of every depth.
    """
    stage_s, edge_s, rate = n.stage_s[q, size], n.edge_s[size], t.sizes[size] / tau_s
    types, width = n.value.shape
    per_block = least_per_block(t, n, stage_s, edge_s, tau_s, rate)
    best = math.inf
    for position in range(len(n.cost)):
        n.cost[position] = math.inf
    for position in range(len(n.cost)):
        is_open = True
        if position == 0:
            for kind in range(types):
                for covered in range(width):
                    n.onward[kind, covered] = math.inf if covered else 0.0
        else:
            is_open = add_messages(n, edge_s, rate, per_block, most, position)
        if not is_open:
            break
        cheapest_stages(t, n, stage_s, edge_s, tau_s, rate, position)
        put_in_front(t, n, position)
        close_pipelines(t, n, stage_s, edge_s, tau_s, rate, position)
        best = min(best, n.cost[position])
    return best if best < most else math.inf


@inlined
def cheapest_stages(
    t: Tables,
    n: Network,
    stage_s: Floats,
    edge_s: Floats,
    tau_s: float,
    rate: float,
    position: int,
) -> None:
    """Fill `stage` and `option` for stages at that position that are not the first."""
    types, most_dense, width = n.stage.shape
    for kind in range(types):
        for dense in range(most_dense):
            for blocks in range(width):
                n.stage[kind, dense, blocks] = math.inf
    for option in range(len(n.duals)):
        kind = t.option_type[option]
        within_s = tau_s - (2.0 if position else 1.0) * edge_s[kind, kind]
        for dense in range(most_dense if n.duals[option] < math.inf else 0):
            for others in range(0 if dense else 1, width - dense):
                seconds = stage_s[option, position, 0, dense, others]
                if seconds > within_s:
                    break
                cost = n.duals[option] + rate * seconds
                if cost < n.stage[kind, dense, dense + others]:
                    n.stage[kind, dense, dense + others] = cost
                    n.option[kind, dense, dense + others] = option


@inlined
def least_per_block(
    t: Tables, n: Network, stage_s: Floats, edge_s: Floats, tau_s: float, rate: float
) -> float:
    """The least that a stage in front of another one costs for each of its blocks.

    Nearest to the end, where the least memory is taken, and with a message on one side only.
    """
    least = math.inf
    position = min(1, stage_s.shape[1] - 1)
    for option in range(len(n.duals)):
        kind = t.option_type[option]
        for dense in range(stage_s.shape[3] if n.duals[option] < math.inf else 0):
            for others in range(0 if dense else 1, stage_s.shape[4] - dense):
                seconds = stage_s[option, position, 0, dense, others]
                if seconds > tau_s - edge_s[kind, kind]:
                    break
                least = min(least, (n.duals[option] + rate * seconds) / (dense + others))
    return least


@inlined
def add_messages(
    n: Network, edge_s: Floats, rate: float, per_block: float, most: float, position: int
) -> bool:
    """Fill `onward` from `value`; whether any path can still become a pipeline below `most`.

    What a path does not cover yet costs at least so much for each block (completion bound).
    """
    types, width = n.value.shape
    is_open = False
    for kind in range(types):
        for covered in range(width):
            n.onward[kind, covered] = math.inf
        for behind in range(types):
            message = 2.0 * rate * edge_s[kind, behind]
            for covered in range(width):
                cost = n.value[behind, covered] + message
                if cost < n.onward[kind, covered]:
                    n.onward[kind, covered] = cost
                    n.behind[position, kind, covered] = behind
        for covered in range(width):
            if n.onward[kind, covered] + (width - 1 - covered) * per_block >= most:
                n.onward[kind, covered] = math.inf
            is_open = is_open or n.onward[kind, covered] < math.inf
    return is_open


@inlined
def put_in_front(t: Tables, n: Network, position: int) -> None:
    """Fill `value` with one more stage in front of all paths of `onward`; a block is left over.

    A stage has dense blocks where it reaches into the first `t.dense` blocks of the model.
    """
    types, width = n.value.shape
    for kind in range(types):
        for covered in range(width):
            n.value[kind, covered] = math.inf
        start, stop = 0, width - 1
        while start < stop and n.onward[kind, start] == math.inf:
            start += 1
        while start < stop and n.onward[kind, stop - 1] == math.inf:
            stop -= 1
        for blocks in range(1, width - 1 - start):
            last = min(stop, width - 1 - blocks)
            plain = max(start, min(last, width - t.dense - blocks))  # from here on some are dense
            extend(n, position, kind, 0, blocks, start, plain)
            for covered in range(plain, last):
                dense = min(blocks, covered + blocks - (width - 1 - t.dense))
                extend(n, position, kind, dense, blocks, covered, covered + 1)


@jit
def extend(
    n: Network, position: int, kind: int, dense: int, blocks: int, start: int, stop: int
) -> None:
    """Put a stage of so many blocks in front of the paths that cover from `start` on to `stop`.

    Indices have no sign: to ask whether one is negative takes as long as the rest.
    """
    added = n.stage[kind, dense, blocks]
    if added == math.inf:
        return
    code = n.option[kind, dense, blocks] * n.value.shape[1] + blocks
    more = np.uint64(blocks)
    for covered in range(np.uint64(start), np.uint64(stop)):
        at = covered + more
        cost = n.onward[kind, covered] + added
        is_less = cost < n.value[kind, at]
        n.value[kind, at] = cost if is_less else n.value[kind, at]
        before = n.front[position, kind, at]
        n.front[position, kind, at] = code if is_less else before


@inlined
def close_pipelines(
    t: Tables,
    n: Network,
    stage_s: Floats,
    edge_s: Floats,
    tau_s: float,
    rate: float,
    position: int,
) -> None:
    """Fill `cost` with the best first stage in front of the paths of `onward`, of all that is left.

    It is the only one at position 0.
    """
    width = n.value.shape[1]
    for option in range(len(n.duals)):
        kind = t.option_type[option]
        within_s = tau_s - (edge_s[kind, kind] if position else 0.0)
        for covered in range(width - 1 if n.duals[option] < math.inf else 0):
            left = width - 1 - covered
            dense = min(left, t.dense)
            seconds = stage_s[option, position, 1, dense, left - dense]
            cost = n.onward[kind, covered] + n.duals[option] + rate * seconds
            if seconds <= within_s and cost < n.cost[position]:
                n.cost[position] = cost
                n.first[0, position] = option
                n.first[1, position] = left


@inlined
def read_pipeline(t: Tables, n: Network, position: int) -> None:
    """Fill `path` with the cheapest pipeline of `position` + 1 stages, the first one first."""
    options, blocks = n.path[0], n.path[1]
    width = n.value.shape[1]
    options[0] = n.first[0, position]
    blocks[0] = n.first[1, position]
    covered = width - 1 - blocks[0]
    kind = t.option_type[options[0]]
    for s in range(1, position + 1):
        kind = n.behind[position - s + 1, kind, covered]
        code = n.front[position - s, kind, covered]
        options[s], blocks[s] = code // width, code % width
        covered -= blocks[s]
