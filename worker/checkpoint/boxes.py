"""Who writes which box of the state, and where its numbers lie in the whole tensor.

Invariants: of all holders of a piece one writes it; every holder computes the same table, without a
message; the boxes tile every tensor once.
Source: design of checkpoints ("writers", blocks).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, model_tensors
from planner.plans.pieces import Piece, holders
from planner.plans.plan import Plan

# Of a tensor in the files of one rank, so that a reader need not read it all.  A stack of experts
# is cut both ways, as another plan takes some experts, some rows, or both.
BLOCKS, EXPERT_BLOCKS = 8, 32


def written(model: ModelShape, plan: Plan) -> dict[int, tuple[Piece, ...]]:
    """{rank: pieces that it writes}; a piece goes to its holder with the fewest elements so far.

    Larger pieces are given first, and the lowest rank decides a tie.
    """
    tensors = {tensor.name: tensor for tensor in model_tensors(model)}
    held = {
        piece: tuple(rank for ranks in contributors for rank in ranks)
        for piece, contributors in holders(model, plan).items()
    }
    loads = {rank: 0 for ranks in held.values() for rank in ranks}
    chosen: dict[Piece, int] = {}
    for piece in sorted(held, key=lambda one: -numel(tensors[one.tensor], one)):
        rank = min(held[piece], key=lambda r: (loads[r], r))
        loads[rank] += numel(tensors[piece.tensor], piece)
        chosen[piece] = rank
    return {rank: tuple(piece for piece in held if chosen[piece] == rank) for rank in sorted(loads)}


def blocks(pieces: Sequence[Piece]) -> tuple[tuple[Piece, ...], ...]:
    """Blocks of the pieces of one rank [files][boxes]: a file has a tensor once."""
    files: list[list[Piece]] = []
    for _, of_tensor in groupby(sorted(pieces), key=lambda piece: piece.tensor):
        mine = list(of_tensor)
        cut = [block for piece in mine for block in _cut(piece, len(mine))]
        files += [[] for _ in range(len(cut) - len(files))]
        for file, block in zip(files, cut, strict=False):
            file.append(block)
    return tuple(map(tuple, files))


def _cut(piece: Piece, pieces: int) -> Iterable[Piece]:
    """The blocks of one of so many pieces of a tensor."""
    stacks = _ranges(piece.expert_start, piece.expert_stop, EXPERT_BLOCKS // 4 // pieces)
    most = EXPERT_BLOCKS // pieces // len(stacks) if len(stacks) > 1 else BLOCKS // pieces
    rows = _ranges(piece.start, piece.stop, min(BLOCKS, most))
    return (Piece(piece.tensor, *row, *stack) for stack in stacks for row in rows)


def _ranges(start: int, stop: int, most: int) -> list[tuple[int, int]]:
    """At most so many ranges, but one at least, of about equal lengths."""
    parts = max(1, most)
    edges = sorted({start + index * (stop - start) // parts for index in range(parts + 1)})
    return list(pairwise(edges))


def numel(tensor: Tensor, box: Piece) -> int:
    """Elements of a box."""
    return (box.stop - box.start) * (box.expert_stop - box.expert_start) * tensor.row_numel


def offsets(tensor: Tensor, box: Piece) -> list[int]:
    """Where a box begins in the whole tensor."""
    found = [0] * len(tensor.shape)
    found[tensor.row_dim] = box.start
    if tensor.experts:
        found[0] = box.expert_start
    return found


def overlap(box: Piece, other: Piece) -> Piece | None:
    """The rows that two boxes of a tensor share."""
    found = Piece(
        box.tensor,
        max(box.start, other.start),
        min(box.stop, other.stop),
        max(box.expert_start, other.expert_start),
        min(box.expert_stop, other.expert_stop),
    )
    is_there = found.start < found.stop and found.expert_start < found.expert_stop
    return found if is_there and box.tensor == other.tensor else None


def untiled(model: ModelShape, boxes: Iterable[Piece]) -> str | None:
    """The first tensor whose rows the boxes do not cover once each; None: there is none."""
    found: dict[str, list[Piece]] = {tensor.name: [] for tensor in model_tensors(model)}
    for box in boxes:
        if box.tensor not in found:
            return box.tensor
        found[box.tensor].append(box)
    for tensor in model_tensors(model):
        mine = found[tensor.name]
        stacks = sorted({(box.expert_start, box.expert_stop) for box in mine})
        rows = (sorted((b.start, b.stop) for b in mine if b[3:] == stack) for stack in stacks)
        experts = max(1, tensor.experts)
        if not _covers(stacks, experts) or not all(_covers(row, tensor.rows) for row in rows):
            return tensor.name
    return None


def _covers(ranges: Sequence[tuple[int, int]], stop: int) -> bool:
    edges = [0, *(edge for pair in ranges for edge in pair), stop]
    return all(edges[i] == edges[i + 1] for i in range(0, len(edges), 2)) and bool(ranges)
