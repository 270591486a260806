"""The network of the pricing problem: what its paths cost, and what they are worked out in.

A path is a pipeline that begins at its last stage, because from there the position says how many
micro-batches a stage has in flight.
Legend: O options, R rows (room of each option, then limits), Q multiples, Z sizes, G bottlenecks,
P positions from the end, T node classes, D dense blocks, L blocks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.fill.filling import stage_rows
from planner.estimator.fill.stage import slot_of
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import MAX_DEPTH, Floats, Ints, Tables

GRID = 1.2  # ratio of neighbouring bottlenecks
BOTTLENECKS = 55  # from the least that a stage can take on


@by_reference
class Network(NamedTuple):
    """Constants of a pricing problem, values that it learns, and scratch space.

    Attributes:
        multiples: [Q] of replicas, which tilings of experts can ask for.
        taus_s: [G] bottlenecks, ascending.
        edge_s: [Z, T, T] a message from the first class to the second; both stages wait for it.
        stage_s: [Q, Z, O, P, 2, D + 1, L + 1] seconds of a stage by whether it is the first and by
            its blocks of both kinds, filled where `is_ready` [Q, Z] is 1.
        is_ready: see there.
        gain: [Q, Z, G] of the best column of a bottleneck when it was tried last, a share of its
            worth; -1: far below, or never tried.
        multiplier: [Q, Z, R] of a GPU beyond the room.
        asked: [R] GPUs that the cheapest pipeline asks for.
        duals: [O] of a TP group, multipliers included; infinite: not to be used.
        room: [R] GPUs that a column may use.
        path: [2, MAX_DEPTH] options and blocks of a pipeline.
        stage: [T, D + 1, L + 1] the cheapest stage that is not the first, by its dense blocks and
            by all its blocks.
        option: [T, D + 1, L + 1] of that stage.
        value: [T, L + 1] the cheapest path, by its front class and the blocks covered.
        onward: [T, L + 1] the same with the message to one more stage in front.
        front: [P, T, L + 1] first stage of the path in `value`: option * (L + 1) + blocks.
        behind: [P, T, L + 1] class behind the message in `onward`.
        cost: [P] of the cheapest whole pipeline of so many stages, less one.
        first: [2, P] option and blocks of its first stage.
    """

    multiples: Ints
    taus_s: Floats
    edge_s: Floats
    stage_s: Floats
    is_ready: Ints
    gain: Floats
    multiplier: Floats
    asked: Floats
    duals: Floats
    room: Floats
    path: Ints
    stage: Floats
    option: Ints
    value: Floats
    onward: Floats
    front: Ints
    behind: Ints
    cost: Floats
    first: Ints


def new_network(t: Tables, deepest: int) -> Network:
    """Nothing priced yet; pipelines have at most so many stages."""
    types, options, sizes = len(t.node_gpus), len(t.option_tp), len(t.sizes)
    deepest = min(deepest, t.layers, MAX_DEPTH)
    multiples = replica_multiples(t)
    of_all = (len(multiples), sizes)
    rows = len(room_by_row(t))
    least_s = t.block_s[:, :, :, 1].min() * math.ceil(t.layers / deepest)
    by_blocks, by_covered = (types, t.dense + 1, t.layers + 1), (types, t.layers + 1)
    return Network(
        multiples=multiples,
        taus_s=least_s * GRID ** np.arange(BOTTLENECKS),
        edge_s=message_seconds(t),
        stage_s=np.empty((*of_all, options, deepest, 2, t.dense + 1, t.layers + 1)),
        is_ready=np.zeros(of_all, np.int64),
        gain=np.full((*of_all, BOTTLENECKS), -1.0),
        multiplier=np.zeros((*of_all, rows)),
        asked=np.zeros(rows),
        duals=np.zeros(options),
        room=np.zeros(rows),
        path=np.zeros((2, MAX_DEPTH), np.int64),
        stage=np.zeros(by_blocks),
        option=np.zeros(by_blocks, np.int64),
        value=np.zeros(by_covered),
        onward=np.zeros(by_covered),
        front=np.zeros((deepest, *by_covered), np.int64),
        behind=np.zeros((deepest, *by_covered), np.int64),
        cost=np.zeros(deepest),
        first=np.zeros((2, deepest), np.int64),
    )


def room_by_row(t: Tables) -> Ints:
    """[R] GPUs that a plan may use: by option, in TP groups of its degree or larger; by limit."""
    return np.concatenate([t.room, t.limit])


@jit
def counts_in(t: Tables, row: int, option: int) -> bool:
    """Whether the GPUs of a TP group of that option count in a row."""
    if row >= len(t.option_tp):
        return t.is_limited[row - len(t.option_tp), t.option_type[option]] == 1
    return row <= option and t.option_type[row] == t.option_type[option]


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
    is_of = t.option_type == np.arange(types)[:, None]
    share = is_of / np.maximum(is_of.sum(axis=1, keepdims=True), 1)
    for one in range(types):
        later_s = np.maximum(port_s[is_of[one]][:, None], port_s[None, :])
        edge_s[:, one] = (share @ later_s.mean(axis=0)).T
    if not t.spreads_experts:
        for kind, gpus in enumerate(t.node_gpus):
            edge_s[:, kind, kind] /= gpus
            edge_s[:, kind, kind] += t.inside_s[kind] * (1 - 1 / gpus)
    return edge_s


@inlined
def stage_seconds(t: Tables, size: int, replicas: int, out: Floats) -> None:
    """Seconds of every stage there can be, messages apart; infinite where memory is too small."""
    most = t.batch // t.sizes[size]  # micro-batches of a replica
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


@inlined
def is_full(stage_s: Floats, option: int, position: int) -> bool:
    """Whether no block fits nearer to the end, where less is in flight; the last does not count."""
    if position < 2:
        return False
    for is_first in range(2):
        for dense in range(min(2, stage_s.shape[3])):
            if stage_s[option, position - 1, is_first, dense, 1 - dense] < math.inf:
                return False
    return True
