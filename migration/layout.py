"""Who holds and who needs which piece of the state, among the members of one change of plan.

A holder's name is its transport rank: its index among the members, old and new together.  A rank
belongs to one plan and a GPU to one process, so a member is found in the plan that it holds by its
node and GPU.
Invariant: both layouts of a change are cut at the same refinement
(`planner.plans.pieces.common_refinement` of the new plan and of every plan held), so that equal
pieces are the same numbers.
Source: Heddle, section 5.6 (DSM).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from migration.errors import LayoutMismatch
from planner.model.shape import ModelShape
from planner.plans.pieces import Piece, piece_numels, seat_pieces
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap, Seat

PARTS = 3  # of a piece's state: weight, exp_avg, exp_avg_sq
PART_BYTES = 4  # of one element of a part; fp32


class Participant(Protocol):
    """What migration knows of a member of an epoch's union; `worker.contract.Member` is one."""

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


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Transport rank -> the pieces that it holds, or needs.

    Attributes:
        pieces: one row per member, each in canonical order (a second layout after the first).
    """

    pieces: tuple[tuple[Piece, ...], ...]

    def __getitem__(self, transport_rank: int) -> tuple[Piece, ...]:
        return self.pieces[transport_rank]

    def __len__(self) -> int:
        return len(self.pieces)

    def holders(self) -> dict[Piece, tuple[int, ...]]:
        """The transport ranks of each piece, ascending; a piece that nobody has is not in it."""
        found: dict[Piece, list[int]] = {}
        for rank, row in enumerate(self.pieces):
            for piece in row:
                found.setdefault(piece, []).append(rank)
        return {piece: tuple(ranks) for piece, ranks in found.items()}


def held_layout(
    model: ModelShape,
    members: Sequence[Participant],
    layouts: Mapping[int, Plan],
    tp_degrees: frozenset[int],
) -> StateLayout:
    """What the members hold before the change.

    Args:
        model: whose tensors are cut.
        members: in transport-rank order.
        layouts: the plan of every epoch that a member holds.
        tp_degrees: of the refinement.

    Raises:
        LayoutMismatch: a member says that it holds an epoch whose plan is not given or does not
            seat it.
    """
    seats = {epoch: _seats(plan) for epoch, plan in layouts.items()}
    rows: list[tuple[Piece, ...]] = []
    for index, member in enumerate(members):
        found: dict[Piece, None] = {}
        for epoch in (member.holds, member.also_holds):
            if epoch is not None:
                seat = _held_seat(index, member, epoch, seats)
                found.update(dict.fromkeys(seat_pieces(model, seat, tp_degrees)))
        rows.append(tuple(found))
    return StateLayout(tuple(rows))


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
    tp_degrees: frozenset[int],
) -> StateLayout:
    """What the members must hold after the change.

    Args:
        model: whose tensors are cut.
        plan: the new plan.
        members: in transport-rank order.
        tp_degrees: of the refinement.

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
    rows: list[tuple[Piece, ...]] = []
    for index, member in enumerate(members):
        if member.rank is None:
            rows.append(())
            continue
        seat = seats[member.rank]
        if (seat.node, seat.gpu) != (member.node, member.gpu):
            raise LayoutMismatch(
                f"member {index} is rank {member.rank} on GPU {member.gpu} of {member.node!r}, "
                f"but the new plan seats that rank on GPU {seat.gpu} of {seat.node!r}"
            )
        rows.append(seat_pieces(model, seat, tp_degrees))
    return StateLayout(tuple(rows))


def state_bytes(model: ModelShape, tp_degrees: frozenset[int]) -> dict[Piece, int]:
    """Bytes of the state of every piece, all its parts together, in canonical order."""
    return {
        piece: PARTS * PART_BYTES * count
        for piece, count in piece_numels(model, tp_degrees).items()
    }


def describe(piece: Piece) -> str:
    """A piece in a user's words: `slice [32, 64) of tensor q in layer 3`."""
    layer, _, name = piece.tensor.partition(".")
    where = "the embedding" if layer == "0" else f"layer {layer}"
    whole = (piece.start, piece.stop) == (0, 1)
    return (
        "" if whole else f"slice [{piece.start}, {piece.stop}) of "
    ) + f"tensor {name} in {where}"


def _seats(plan: Plan) -> dict[tuple[str, int], Seat]:
    return {(seat.node, seat.gpu): seat for seat in RankMap.of(plan).seats}


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
