"""Stages in a row on one node are a visit; what visits there can be, and the chains of them.

The shortest path of `chains` gets a state for a visit: whether the message in front of a stage
leaves the node, and through which port, or stays, and then how many GPUs the visit has by now.
Invariant: a pipeline of any plan costs at most what its relaxed visits cost.
Source: research on plan search (column generation).
Legend: E ways to use an option, K kinds, Q ports, R states, O options, P positions, Z sizes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.estimator.jit import jit
from planner.estimator.tables import Floats, Ints, Tables


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

    The first Q states are ports, through which the message in front leaves the node; then those of
    visits, by kind and by GPUs.

    Attributes:
        state: [K] of a visit of that kind without GPUs.
        values: [P + 1, R, L + 1] cheapest chain of so many stages.
        stages: [P + 1, R, L + 1] its front stage, as `stage_code`.
        came_from: [P, Q, L + 1] port behind the message to the stage at that position.
        sources: [R + 1, L + 1] chains with the message to one more stage; last, some merged.
        span: [R + 1, 2] the fewest blocks that they cover, and the most, plus 1.
        dearest: [O, L + 1] what a stage that is not the last may cost.
        cost: [P] of the cheapest whole pipeline with so many stages, less one.
        first: [P] its first stage.
    """

    state: Ints
    values: Floats
    stages: Ints
    came_from: Ints
    sources: Floats
    span: Ints
    dearest: Floats
    cost: Floats
    first: Ints


def new_walk(visits: Visits, deepest: int, layers: int, options: int) -> Walk:
    """Room for one run."""
    ports = visits.crossing_s.shape[1]
    gpus = np.maximum(visits.gpus, 1)
    states = ports + int(gpus.sum())
    return Walk(
        ports + np.cumsum(gpus) - gpus,
        np.zeros((deepest + 1, states, layers + 1)),
        np.zeros((deepest + 1, states, layers + 1), np.int64),
        np.zeros((deepest, ports, layers + 1), np.int64),
        np.full((states + 1, layers + 1), np.inf),
        np.zeros((states + 1, 2), np.int64),
        np.zeros((options, layers + 1)),
        np.zeros(deepest),
        np.zeros(deepest, np.int64),
    )


@jit
def stage_code(way: int, blocks: int, stays: int, layers: int) -> int:
    """A stage and whether the message behind it stays on its node, as one number."""
    return (way * (layers + 1) + blocks) * 2 + stays


@jit
def read_walk(
    t: Tables, visits: Visits, walk: Walk, position: int, ways: Ints, blocks: Ints
) -> None:
    """The stages of the cheapest pipeline with `position` + 1 of them, the first one first."""
    layers = walk.values.shape[2] - 1
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
            behind = walk.came_from[at, visits.port[way], covered]
            code, gpus = walk.stages[at, behind, covered], 0
            continue
        before = gpus - tp
        if gpus == 0:  # its own message leaves the node: the best visit that has room for it
            before = 1
            for other in range(2, visits.gpus[kind] - tp + 1):
                here = walk.values[at, walk.state[kind] + other, covered]
                if here < walk.values[at, walk.state[kind] + before, covered]:
                    before = other
        code, gpus = walk.stages[at, walk.state[kind] + before, covered], before
