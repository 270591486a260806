"""The piece table: which rank holds which box of which tensor under a placed plan.

Every tensor is cut at the common refinement of all degrees in question, so that a piece is the same
numbers under every plan and only its holders change.  One table serves the gradient sum, the
gradient norm, synchronisation prices, the count of holders and migration alike.

Contributors, copies and holders are not the same.  A contributor has a gradient of its own, and the
gradients of all contributors are added: each pipeline is one, and of tiled experts each rank that
has the box, because other tokens come to it.  Copies of a contributor hold the same numbers and
have equal gradients: the TP group of a tensor that TP leaves whole.  Holders are all of them.
Source: Heddle, sections 3.2 (expert tiling) and 5.6 (DSM).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, layer_tensors, model_tensors
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap, Seat, Share
from planner.plans.regions import (
    WHOLE,
    Cuts,
    Ints,
    Mask,
    Regions,
    common_refinement,
    cut_points,
    is_uncut,
    regions_of,
    share_of,
    shared_rows,
    state_refinement,
    units_of,
)

Ranks = tuple[int, ...]
Value = TypeVar("Value")


class Piece(NamedTuple):
    """Rows `[start, stop)` of a tensor; of a stack of experts, of those `[expert_start, ...)`.

    Rows are counted along the dimension that TP cuts, or the first of a tensor that it leaves
    whole.
    """

    tensor: str
    start: int
    stop: int
    expert_start: int = 0
    expert_stop: int = 1


@cache
def tensor_pieces(tensor: Tensor, cuts: Cuts) -> tuple[Piece, ...]:
    """The pieces of a tensor in order: one for each region that it is in."""
    return tuple(piece for piece in _boxes_of(tensor, cuts) if not is_empty(piece))


@cache
def _boxes_of(tensor: Tensor, cuts: Cuts) -> tuple[Piece, ...]:
    """A box of a tensor for each region of its share, in order.

    One is empty where a tensor has fewer rows than owners.
    """
    of_experts, of_tp, of_etp, of_whole = units_of(cuts)
    units, degrees = {
        "whole": (of_whole, cuts.whole),
        "rows": (of_tp, cuts.tp),
        "experts": (of_etp, cuts.etp),
        "counted": (1, frozenset({1})),
    }[share_of(tensor)]
    blocks: Sequence[tuple[int, int]] = [(0, 1)]
    if tensor.experts:
        blocks = [*pairwise(_places(tensor.experts, of_experts, cuts.ep))]
    return tuple(
        Piece(tensor.name, *rows, *block)
        for block in blocks
        for rows in pairwise(_places(tensor.rows, units, degrees))
    )


def _places(size: int, units: int, degrees: frozenset[int]) -> list[int]:
    """The cut points of so many rows, as often as some cuts fall on one row."""
    return [point * size // units for point in cut_points(units, degrees)]


def is_empty(piece: Piece) -> bool:
    """Whether it has no row."""
    return piece.start == piece.stop or piece.expert_start == piece.expert_stop


def shard(tensor: Tensor, seat: Seat) -> Piece:
    """All that a seat holds of a tensor, whatever the cuts."""
    return _box(tensor, seat, WHOLE, WHOLE)


def owned(tensor: Tensor, seat: Seat) -> Piece:
    """All that a seat owns of a tensor, whatever the cuts; maybe without a row."""
    return _box(tensor, seat, seat.owner, seat.expert_owner)


def _box(tensor: Tensor, seat: Seat, owner: Share, expert_owner: Share) -> Piece:
    if tensor.dim is None:
        of_all = WHOLE if tensor.is_counted else owner
        return Piece(tensor.name, *shared_rows(WHOLE, of_all, tensor.rows))
    if not tensor.experts:
        return Piece(tensor.name, *shared_rows((seat.slot, seat.tp), owner, tensor.rows))
    block, ep = seat.expert_block
    return Piece(
        tensor.name,
        *shared_rows(seat.expert_part, expert_owner, tensor.rows),
        block * tensor.experts // ep,
        (block + 1) * tensor.experts // ep,
    )


def contains(outer: Piece, inner: Piece) -> bool:
    """Whether all of `inner` lies in `outer`."""
    rows = outer.start <= inner.start and inner.stop <= outer.stop
    experts = outer.expert_start <= inner.expert_start and inner.expert_stop <= outer.expert_stop
    return outer.tensor == inner.tensor and rows and experts


def held_pieces(tensor: Tensor, seat: Seat, cuts: Cuts) -> tuple[Piece, ...]:
    """The pieces of a tensor that a seat holds: they tile its shard, expert by expert."""
    mine = shard(tensor, seat)
    return tuple(piece for piece in tensor_pieces(tensor, cuts) if contains(mine, piece))


def region_pieces(regions: Regions, held: Mask) -> tuple[Piece, ...]:
    """The pieces of some regions [regions], in canonical order."""
    return tuple(
        piece
        for layer in np.unique(regions.layer[held]).tolist()
        for tensor in layer_tensors(regions.model, layer)
        for index, piece in enumerate(
            _boxes_of(tensor, regions.cuts), regions.first[layer, share_of(tensor)]
        )
        if held[index] and not is_empty(piece)
    )


def region_piece(regions: Regions, index: int) -> Piece:
    """The first piece of a region, to name it by."""
    return region_pieces(regions, np.arange(len(regions)) == index)[0]


def holders(model: ModelShape, plan: Plan) -> dict[Piece, tuple[Ranks, ...]]:
    """The piece table: {piece: (the copies of one contributor, those of the next, ...)}.

    In canonical order.  The first rank of each tuple, the *lead*, speaks for its contributor.
    """
    regions = regions_of(model, common_refinement([plan]))
    ranks = RankMap.of(plan)
    held = np.ascontiguousarray(regions.held(ranks.seats).T)
    known: dict[tuple[bytes, bool], tuple[Ranks, ...]] = {}
    found = []
    for row, is_whole in zip(held, is_uncut(regions).tolist(), strict=True):
        key = row.tobytes(), is_whole
        if key not in known:
            mine = np.flatnonzero(row).tolist()
            if is_whole:  # its TP group holds it, of which the lead comes first
                known[key] = tuple(ranks.seats[r].tp_ranks for r in mine if not ranks.seats[r].slot)
            else:
                known[key] = tuple((rank,) for rank in mine)
        found.append(known[key])
    return _by_piece(regions, found)


def _by_piece(regions: Regions, values: Sequence[Value]) -> dict[Piece, Value]:
    """The value of its region for every piece, in canonical order."""
    return {
        piece: values[index]
        for tensor in model_tensors(regions.model)
        for index, piece in enumerate(
            _boxes_of(tensor, regions.cuts), regions.first[tensor.layer, share_of(tensor)]
        )
        if not is_empty(piece)
    }


def owners(model: ModelShape, plan: Plan) -> dict[Piece, Ranks]:
    """{piece of the state: all ranks that own it}, in canonical order."""
    regions = regions_of(model, state_refinement([plan]))
    owning = np.ascontiguousarray(regions.owned_by(RankMap.of(plan).seats).T)
    known: dict[bytes, Ranks] = {}
    for row in owning:
        known.setdefault(row.tobytes(), tuple(np.flatnonzero(row).tolist()))
    return _by_piece(regions, [known[row.tobytes()] for row in owning])


def node_counts(model: ModelShape, plan: Plan) -> dict[Piece, int]:
    """On how many nodes each piece of the state has an owner."""
    regions = regions_of(model, state_refinement([plan]))
    return _by_piece(regions, _count_nodes(regions, plan).tolist())


def holders_min(model: ModelShape, plan: Plan) -> int:
    """The smallest number of nodes on which any piece of the state has an owner."""
    return int(_count_nodes(regions_of(model, state_refinement([plan])), plan).min())


def _count_nodes(regions: Regions, plan: Plan) -> Ints:
    seats = RankMap.of(plan).seats
    held = regions.owned_by(seats)
    _, node = np.unique([seat.node for seat in seats], return_inverse=True)
    order = np.argsort(node, kind="stable")
    first = np.flatnonzero(np.diff(node[order], prepend=-1))  # of each node's seats
    found: Ints = np.logical_or.reduceat(held[order], first, axis=0).sum(axis=0)
    return found
