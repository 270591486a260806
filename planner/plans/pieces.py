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
from planner.plans.ranks import RankMap, Seat
from planner.plans.regions import (
    Cuts,
    Ints,
    Mask,
    Regions,
    common_refinement,
    cut_points,
    regions_of,
    share_of,
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
    share = share_of(tensor)
    degrees = {"whole": frozenset({1}), "rows": cuts.tp, "experts": cuts.etp}[share]
    experts = cut_points(tensor.experts, cuts.ep) if tensor.experts else (0, 1)
    return tuple(
        Piece(tensor.name, *rows, *block)
        for block in pairwise(experts)
        for rows in pairwise(cut_points(tensor.rows, degrees))
    )


def shard(tensor: Tensor, seat: Seat) -> Piece:
    """All that a seat holds of a tensor, whatever the cuts."""
    if tensor.dim is None:
        return Piece(tensor.name, 0, tensor.rows)
    if not tensor.experts:
        start, stop = (index * tensor.rows // seat.tp for index in (seat.slot, seat.slot + 1))
        return Piece(tensor.name, start, stop)
    (block, ep), (part, etp) = seat.expert_block, seat.expert_part
    return Piece(
        tensor.name,
        part * tensor.rows // etp,
        (part + 1) * tensor.rows // etp,
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
            tensor_pieces(tensor, regions.cuts), regions.first[layer, share_of(tensor)]
        )
        if held[index]
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
    for row, is_whole in zip(held, (regions.share == 0).tolist(), strict=True):
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
            tensor_pieces(tensor, regions.cuts), regions.first[tensor.layer, share_of(tensor)]
        )
    }


def node_counts(model: ModelShape, plan: Plan) -> dict[Piece, int]:
    """On how many nodes each piece of the state lives."""
    regions = regions_of(model, common_refinement([plan]))
    return _by_piece(regions, _count_nodes(regions, plan).tolist())


def holders_min(model: ModelShape, plan: Plan) -> int:
    """The smallest number of nodes that any piece of the state lives on."""
    return int(_count_nodes(regions_of(model, common_refinement([plan])), plan).min())


def _count_nodes(regions: Regions, plan: Plan) -> Ints:
    seats = RankMap.of(plan).seats
    held = regions.held(seats)
    _, node = np.unique([seat.node for seat in seats], return_inverse=True)
    order = np.argsort(node, kind="stable")
    first = np.flatnonzero(np.diff(node[order], prepend=-1))  # of each node's seats
    found: Ints = np.logical_or.reduceat(held[order], first, axis=0).sum(axis=0)
    return found
