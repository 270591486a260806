"""Holders and takers of each piece of the state, among the members of one change of plan.

A holder's name is its transport rank: its index among the members, old and new together.  A rank
belongs to one plan and a GPU to one process, so a member is found in the plan that it holds by its
node and GPU.
Invariant: both layouts of a change are cut at the same refinement
(`planner.plans.regions.common_refinement` of the new plan and of every plan held), so that equal
pieces are the same numbers.
Source: Heddle, section 5.6 (DSM).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from migration.errors import LayoutMismatch
from planner.model.shape import ModelShape
from planner.plans.pieces import Piece, region_pieces
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap, Seat
from planner.plans.regions import Cuts, Mask, Regions, regions_of
from planner.plans.state_rule import OWNED, PartNames


class Participant(Protocol):
    """Migration's view of a member of an epoch's union; `worker.contract.Member` is one."""

    @property
    def rank(self) -> int | None:
        """In the new plan; None: it leaves."""

    @property
    def holds(self) -> int | None:
        """The epoch whose layout it holds, with state; None: it holds nothing."""

    @property
    def also_holds(self) -> int | None:
        """The epoch of a second layout that it holds as well; None: there is none."""

    @property
    def node(self) -> str:
        """Name of its node."""

    @property
    def gpu(self) -> int:
        """Of the node's GPUs, as the placement counts them."""


@dataclass(frozen=True, slots=True, eq=False)
class StateLayout:
    """Pieces that each transport rank holds, or needs.

    Attributes:
        regions: of the state, at the common refinement.
        masks: {parts: which regions of them each member has [members, regions]}.  PartNames whose
            holders are the same stand in one entry and travel together; see `StateRule`.
    """

    regions: Regions
    masks: Mapping[PartNames, Mask]

    def __getitem__(self, transport_rank: int) -> tuple[Piece, ...]:
        """The pieces of a member, in canonical order, whatever parts it has of them."""
        rows = [mask[transport_rank] for mask in self.masks.values()]
        return region_pieces(self.regions, np.logical_or.reduce(rows))

    def __len__(self) -> int:
        return len(next(iter(self.masks.values())))


def held_layout(
    model: ModelShape,
    members: Sequence[Participant],
    layouts: Mapping[int, Plan],
    cuts: Cuts,
) -> StateLayout:
    """Pieces that the members hold before the change.

    Args:
        model: whose tensors are cut.
        members: in transport-rank order.
        layouts: the plan of every epoch that a member holds.
        cuts: of the refinement.

    Raises:
        LayoutMismatch: a member says that it holds an epoch whose plan is not given or does not
            seat it.
    """
    seats = {epoch: _seats(plan) for epoch, plan in layouts.items()}
    regions = regions_of(model, cuts)
    held = [
        [
            _held_seat(index, member, epoch, seats)
            for epoch in (member.holds, member.also_holds)
            if epoch is not None
        ]
        for index, member in enumerate(members)
    ]
    return StateLayout(regions, OWNED.masks(regions, held))


def _held_seat(
    index: int,
    member: Participant,
    epoch: int,
    seats: Mapping[int, Mapping[tuple[str, int], Seat]],
) -> Seat:
    """Where a member sits in the plan of an epoch whose state it holds."""
    if epoch not in seats:
        raise LayoutMismatch(
            f"member {index} holds the state of epoch {epoch}, whose plan is not given; "
            f"the plans given are of epochs {_listed(sorted(seats))}"
        )
    seat = seats[epoch].get((member.node, member.gpu))
    if seat is None:
        raise LayoutMismatch(
            f"member {index} holds the state of epoch {epoch}, but that plan "
            f"has no seat on GPU {member.gpu} of node {member.node!r}"
        )
    return seat


def needed_layout(
    model: ModelShape,
    plan: Plan,
    members: Sequence[Participant],
    cuts: Cuts,
) -> StateLayout:
    """Pieces that the members must hold after the change.

    Args:
        model: whose tensors are cut.
        plan: the new plan.
        members: in transport-rank order.
        cuts: of the refinement.

    Raises:
        LayoutMismatch: the members do not fill the seats of the plan one to one.
    """
    seats = RankMap.of(plan).seats
    ranks = sorted(member.rank for member in members if member.rank is not None)
    if ranks != list(range(len(seats))):
        raise LayoutMismatch(
            f"the new plan has ranks 0 to {len(seats) - 1}, the members have {_listed(ranks)}; "
            "each rank needs one member"
        )
    regions = regions_of(model, cuts)
    needed: list[list[Seat]] = [[] for _ in members]
    for index, member in enumerate(members):
        if member.rank is None:
            continue
        seat = seats[member.rank]
        if (seat.node, seat.gpu) != (member.node, member.gpu):
            raise LayoutMismatch(
                f"member {index} is rank {member.rank} on GPU {member.gpu} of {member.node!r}, "
                f"but the new plan seats that rank on GPU {seat.gpu} of {seat.node!r}"
            )
        needed[index].append(seat)
    return StateLayout(regions, OWNED.masks(regions, needed))


def describe(piece: Piece) -> str:
    """A piece in a user's words: `rows [32, 64) of tensor q in layer 3`."""
    layer, _, name = piece.tensor.partition(".")
    where = "the embedding" if layer == "0" else f"layer {layer}"
    experts = ""
    if (piece.expert_start, piece.expert_stop) != (0, 1):
        experts = f", experts [{piece.expert_start}, {piece.expert_stop}),"
    return f"rows [{piece.start}, {piece.stop}) of tensor {name}{experts} in {where}"


def _seats(plan: Plan) -> dict[tuple[str, int], Seat]:
    return {(seat.node, seat.gpu): seat for seat in RankMap.of(plan).seats}


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
