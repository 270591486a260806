"""The piece table: which rank holds which slice of which tensor under a placed plan.

Every sharded tensor is cut at the common refinement of all TP degrees in question, so that a piece
is the same numbers under every plan and only its holders change.  One table serves the gradient
sum, the gradient norm, synchronisation prices, the count of holders and migration alike.
Source: Heddle, section 5.6 (DSM); the common refinement is Hetu's and Megatron-Core's idea.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, layer_tensors, model_tensors
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap, Seat


class Piece(NamedTuple):
    """Rows `[start, stop)` of a tensor along its shard dimension.

    The whole (0, 1) of a replicated tensor.
    """

    tensor: str
    start: int
    stop: int


def cut_points(size: int, tp_degrees: frozenset[int]) -> tuple[int, ...]:
    """The common refinement of `size` rows cut evenly by each TP degree, from 0 to `size`."""
    return tuple(sorted({index * size // tp for tp in (*tp_degrees, 1) for index in range(tp + 1)}))


@cache
def tensor_pieces(tensor: Tensor, tp_degrees: frozenset[int]) -> tuple[Piece, ...]:
    """The pieces of a tensor in order."""
    if tensor.dim is None:
        return (Piece(tensor.name, 0, 1),)
    cuts = cut_points(tensor.shape[tensor.dim], tp_degrees)
    return tuple(Piece(tensor.name, start, stop) for start, stop in pairwise(cuts))


def held_pieces(
    tensor: Tensor, tp: int, slot: int, tp_degrees: frozenset[int]
) -> tuple[Piece, ...]:
    """The pieces that slot `slot` of a TP group holds.

    A consecutive run, so that its shard is their concatenation.
    """
    pieces = tensor_pieces(tensor, tp_degrees)
    if tensor.dim is None:
        return pieces
    size = tensor.shape[tensor.dim]
    start, stop = slot * size // tp, (slot + 1) * size // tp
    return tuple(piece for piece in pieces if start <= piece.start and piece.stop <= stop)


def seat_pieces(model: ModelShape, seat: Seat, tp_degrees: frozenset[int]) -> tuple[Piece, ...]:
    """All pieces that one seat holds, in canonical order."""
    return tuple(
        piece
        for layer in seat.layers
        for tensor in layer_tensors(model, layer)
        for piece in held_pieces(tensor, seat.tp, seat.slot, tp_degrees)
    )


@cache
def piece_shapes(model: ModelShape, tp_degrees: frozenset[int]) -> Mapping[Piece, tuple[int, ...]]:
    """The shape of every piece of a model, in canonical order."""
    shapes: dict[Piece, tuple[int, ...]] = {}
    for tensor in model_tensors(model):
        for piece in tensor_pieces(tensor, tp_degrees):
            shape = list(tensor.shape)
            if tensor.dim is not None:
                shape[tensor.dim] = piece.stop - piece.start
            shapes[piece] = tuple(shape)
    return shapes


@cache
def piece_numels(model: ModelShape, tp_degrees: frozenset[int]) -> Mapping[Piece, int]:
    """The number of elements of every piece of a model, in canonical order."""
    counts: dict[Piece, int] = {}
    for piece, shape in piece_shapes(model, tp_degrees).items():
        count = 1
        for size in shape:
            count *= size
        counts[piece] = count
    return counts


def holders(
    model: ModelShape, plan: Plan, tp_degrees: frozenset[int] | None = None
) -> dict[Piece, tuple[tuple[int, ...], ...]]:
    """The piece table: {piece.

    (its ranks in pipeline 0, its ranks in pipeline 1, ...)} in canonical order.

    A sharded piece has one rank in each pipeline, a replicated one the whole TP group of its stage,
    whose first rank, the *lead*, speaks for the pipeline.

    Args:
        model: whose tensors are cut.
        plan: P pipelines.
        tp_degrees: of the refinement; those of the plan itself if not given.
    """
    cuts = plan.tp_degrees if tp_degrees is None else tp_degrees
    table: dict[Piece, list[tuple[int, ...]]] = {piece: [] for piece in piece_numels(model, cuts)}
    ranks = RankMap.of(plan)
    for pipeline in ranks.pipelines:
        found: dict[Piece, list[int]] = {}
        for group in pipeline.ranks:
            for rank in group:
                for piece in seat_pieces(model, ranks.seats[rank], cuts):
                    found.setdefault(piece, []).append(rank)
        for piece, owners in found.items():
            table[piece].append(tuple(owners))
    return {piece: tuple(owners) for piece, owners in table.items()}


def nodes_of_pieces(model: ModelShape, plan: Plan) -> dict[Piece, frozenset[str]]:
    """On which nodes each piece of the state lives."""
    seats = RankMap.of(plan).seats
    return {
        piece: frozenset(seats[rank].node for ranks in owners for rank in ranks)
        for piece, owners in holders(model, plan).items()
    }


def holders_min(model: ModelShape, plan: Plan) -> int:
    """The smallest number of nodes that any piece of the state lives on."""
    return min(len(nodes) for nodes in nodes_of_pieces(model, plan).values())


def common_refinement(plans: Iterable[Plan]) -> frozenset[int]:
    """The TP degrees of several plans together."""
    return frozenset(tp for plan in plans for tp in plan.tp_degrees)
