"""Members of a change who switch in memory: over a board of messages, a store and no engine."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch.distributed import HashStore

from migration.errors import TransferFailed
from planner.model.arithmetic import INITIAL_DEVIATION
from planner.model.tensors import layer_tensors
from planner.plans.pieces import shard
from planner.plans.ranks import RankMap
from tests.fakes.transport import Board
from tests.unit.worker.changes import (
    MODEL,
    cut,
    plan,
    pod_of,
    shards_of,
    whole_state,
)
from worker.checkpoint.start_source import FirstWeights
from worker.control.activity import Activity
from worker.device.device import CPU
from worker.engine.seam import Progress
from worker.model.initial_weights import initial_rows
from worker.rank.move import plan_move
from worker.rank.preparation import Prepared, Successor
from worker.rank.switch import Switch, Undecided
from worker.state.held_state import HeldState, find_tensor
from worker.state.shards import TargetShards
from worker.world.payload import payload_of

OLD, NEW = plan("1x2"), plan("2x1+1x1")
PARTS = ("drain", "transfer", "verify", "vote")
SHAPES = ("1x2", "2x2", "4x2", "1x1+1x1", "2x1+1x1", "1x1+2x1")
AT_7 = Progress(step=7, updates=5)
pipelines = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=2)
LIMIT_S = 10.0  # of a switch, that takes milliseconds


class Killed(Exception):
    """What a rank that dies raises here."""


def die_in(part):
    def on_phase(name):
        if name == part:
            raise Killed(part)

    return on_phase


class Watched:
    """What a switch asks of `Services`: to be told of its phases."""

    def __init__(self, on_phase=lambda name: None):
        self.activity = Activity()
        self.device, self.payload = CPU, payload_of(CPU)
        self.phases = []
        self._on_phase = on_phase

    def on_phase(self, name):
        self.phases.append(name)
        self._on_phase(name)


class Member(NamedTuple):
    """One rank of a change; `shards` are the tensors of its old layout, `before` copies of them."""

    switch: Switch
    held: HeldState
    shards: dict
    before: dict

    @property
    def move(self):
        return self.switch.prepared.move

    @property
    def target(self):
        return self.switch.prepared.successor.target

    @property
    def transport(self):
        return self.switch.prepared.transport

    def old_seat(self, old):
        spot = (self.move.member.node, self.move.member.gpu)
        return next((s for s in RankMap.of(old).seats if (s.node, s.gpu) == spot), None)

    def missing(self):
        """Pieces of the new layout that are not there, bit for bit."""
        whole = whole_state()
        return [
            piece
            for piece in self.move.pieces_after()
            if not all(
                map(
                    torch.equal,
                    self.target.view(find_tensor(MODEL, piece.tensor), piece),
                    cut(piece, whole),
                )
            )
        ]

    def is_untouched(self):
        """Whether every bit of the old layout is as it was."""
        return all(
            torch.equal(part, was)
            for name, parts in self.shards.items()
            for part, was in zip(parts, self.before[name], strict=True)
        )


def members_of(
    directive,
    old=OLD,
    *,
    on_phase=None,
    stores=None,
    progress=AT_7,
    state=None,
    verify="Full",
    starts=None,
):
    """Every member of a change, over transports in memory.

    Args:
        on_phase: {member: what it does at each phase}.
        stores: one for each member, else one that all share.
        progress: of the state, or {member: progress} where they differ.
        state: {member: state} where it is not the one that all hold.
        verify: all of the state, or only what moved.
        starts: {member: progress of its source} at a start.
    """
    training = directive.training.model_copy(update={"verify": verify})
    directive = directive.model_copy(update={"training": training})
    shared, found = HashStore(), []
    transports = Board(len(directive.members)).transports()
    for i, (row, transport) in enumerate(zip(directive.members, transports, strict=True)):
        move = plan_move(MODEL, directive, pod_of(row.node), row.slot, "gloo")
        services, shards = Watched((on_phase or {}).get(i, lambda name: None)), {}
        held = HeldState(MODEL)
        for seat in RankMap.of(old).seats if row.holds is not None else ():
            if (seat.node, seat.gpu) == (row.node, row.gpu):
                shards = shards_of(seat, (state or {}).get(i) or whole_state())
                held.add_shards(seat, shards)
        successor = None
        if move.seat is not None:
            target = (
                TargetShards.of(MODEL, move.seat, held, services.activity)
                if move.moves_state
                else TargetShards.first(
                    MODEL,
                    move.seat,
                    FirstWeights(partial(initial_rows, 1, INITIAL_DEVIATION)).fill,
                    services.activity,
                )
            )
            successor = Successor(SimpleNamespace(connects_late=False), target, None)
        store = stores[i] if stores else shared
        start = (starts or {}).get(i)
        prepared = Prepared(
            move=move, store=store, transport=transport, successor=successor, start=start
        )
        mine = progress.get(i, AT_7) if isinstance(progress, dict) else progress
        switch = Switch(
            model=MODEL, prepared=prepared, services=services, progress=mine if shards else None
        )
        before = {name: tuple(part.clone() for part in parts) for name, parts in shards.items()}
        found.append(Member(switch, held, shards, before))
    return found


def run(members, told=lambda: False, before_vote=lambda: None):
    """Outcome, or error, of every rank; who waits in vain for an outcome fails the test."""
    until_s = time.monotonic() + LIMIT_S

    def is_aborted():
        assert time.monotonic() < until_s, "nobody has decided"
        return told()

    def act(member):
        try:
            return member.switch.run(member.held, is_aborted, before_vote)
        except (TransferFailed, Undecided, Killed) as error:
            return error

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(act, members))


def verify(members):
    """The digest that each rank finds after the change, or its error."""

    def act(member):
        try:
            return member.switch.complete(member.transport)
        except TransferFailed as error:
            return error

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(act, members))


def kept_bytes(prepared, held):
    """Of what stays on a rank, of tensors that are cut otherwise now."""
    if prepared.successor is None:
        return 0
    adopted = prepared.successor.target.adopted
    kept = [one for one in prepared.move.kept if one.piece.tensor not in adopted]
    return sum(part.nbytes for one in kept for part in held.read_slice(one))


def bytes_to_copy(member, old):
    """Of what stays on this rank in another cut, by the rows that the old and the new one share."""
    before, after, total = member.old_seat(old), member.move.seat, 0
    if before is None or after is None:
        return 0
    for layer in sorted(set(before.layers) & set(after.layers)):
        for tensor in layer_tensors(MODEL, layer):
            one, other = shard(tensor, before), shard(tensor, after)
            rows = min(one.stop, other.stop) - max(one.start, other.start)
            if one != other and rows > 0:
                total += 3 * 4 * rows * (torch.Size(tensor.shape).numel() // tensor.rows)
    return total
