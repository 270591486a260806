"""Who writes which box of the state, and where its numbers lie in the whole tensor.

Invariants: of all owners of a piece one writes it; every rank computes the same table, without a
message; the boxes tile every tensor once.
Source: design of checkpoints ("writers", blocks).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, model_tensors
from planner.plans.pieces import Piece, owners
from planner.plans.plan import Plan

# Boxes of a piece and of a tensor in all: a reader need not read it all, and a manifest does not
# grow with the ranks.  A stack of experts is cut both ways, as another plan takes some experts,
# some rows, or both.
PIECE_BLOCKS, TENSOR_BLOCKS = 8, 32
EXPERT_PIECE_BLOCKS, EXPERT_TENSOR_BLOCKS = 32, 256


def written(model: ModelShape, plan: Plan) -> dict[int, tuple[Piece, ...]]:
    """{rank: boxes that it writes}; a piece goes to its owner with the fewest elements so far.

    Larger pieces are given first, and the lowest rank decides a tie.
    """
    tensors = {tensor.name: tensor for tensor in model_tensors(model)}
    held = owners(model, plan)
    loads = dict.fromkeys(range(plan.gpus), 0)
    chosen: dict[Piece, int] = {}
    for piece in sorted(held, key=lambda one: -numel(tensors[one.tensor], one)):
        rank = min(held[piece], key=loads.__getitem__)
        loads[rank] += numel(tensors[piece.tensor], piece)
        chosen[piece] = rank
    pieces = Counter(piece.tensor for piece in held)
    found: dict[int, list[Piece]] = {rank: [] for rank in sorted(loads)}
    for piece in held:
        found[chosen[piece]] += _cut(piece, pieces[piece.tensor], tensors[piece.tensor].experts > 0)
    return {rank: tuple(boxes) for rank, boxes in found.items()}


def by_file(boxes: Sequence[Piece]) -> tuple[tuple[Piece, ...], ...]:
    """The boxes of one rank [files][boxes]: a file has a tensor once.

    The last tensor comes first: an update begins with the first one, so it meets fewer that are
    not written yet.
    """
    files: list[list[Piece]] = []
    place = {box.tensor: index for index, box in enumerate(boxes)}
    last_first = sorted(boxes, key=lambda box: -place[box.tensor])
    for _, of_tensor in groupby(last_first, key=lambda box: box.tensor):
        mine = list(of_tensor)
        files += [[] for _ in range(len(mine) - len(files))]
        for file, box in zip(files, mine, strict=False):
            file.append(box)
    return tuple(map(tuple, files))


def _cut(piece: Piece, pieces: int, has_experts: bool) -> Iterator[Piece]:
    """The blocks of one of so many pieces of a tensor."""
    if not has_experts:
        parts = min(PIECE_BLOCKS, TENSOR_BLOCKS // pieces)
        return (Piece(piece.tensor, *rows) for rows in _ranges(piece.start, piece.stop, parts))
    parts = min(EXPERT_PIECE_BLOCKS, EXPERT_TENSOR_BLOCKS // pieces)
    stacks = _ranges(piece.expert_start, piece.expert_stop, min(PIECE_BLOCKS, parts))
    rows = _ranges(piece.start, piece.stop, min(PIECE_BLOCKS, parts // len(stacks)))
    return (Piece(piece.tensor, *row, *stack) for stack in stacks for row in rows)


def _ranges(start: int, stop: int, most: int) -> list[tuple[int, int]]:
    """At most so many ranges, but one at least, of about equal lengths."""
    parts = max(1, most)
    edges = sorted({start + index * (stop - start) // parts for index in range(parts + 1)})
    return list(pairwise(edges))


def numel(tensor: Tensor, box: Piece) -> int:
    """Elements of a box."""
    return (box.stop - box.start) * (box.expert_stop - box.expert_start) * tensor.row_numel


def largest_file(model: ModelShape, boxes: Mapping[int, Sequence[Piece]]) -> int:
    """Elements of the largest file of all ranks, each with these boxes."""
    tensors = {tensor.name: tensor for tensor in model_tensors(model)}
    files = (file for mine in boxes.values() for file in by_file(mine))
    return max((sum(numel(tensors[box.tensor], box) for box in file) for file in files), default=0)


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
        if not _covers_once(found[tensor.name], tensor.rows, max(1, tensor.experts)):
            return tensor.name
    return None


def _covers_once(boxes: Sequence[Piece], rows: int, experts: int) -> bool:
    """Whether boxes of rows and experts cover each of them once, however they are cut."""
    if not boxes:
        return False
    edges = np.array([box[1:] for box in boxes])
    row_edges, row_index = np.unique(edges[:, :2], return_inverse=True)
    expert_edges, expert_index = np.unique(edges[:, 2:], return_inverse=True)
    spans = [(int(cut[0]), int(cut[-1])) for cut in (row_edges, expert_edges)]
    if spans != [(0, rows), (0, experts)]:
        return False
    (start, stop), (first, last) = row_index.reshape(-1, 2).T, expert_index.reshape(-1, 2).T
    if (start >= stop).any() or (first >= last).any():
        return False
    # Each box adds one at two of its corners and takes it away at the others: sums count covers.
    counts = np.zeros((len(row_edges), len(expert_edges)), dtype=np.int64)
    for row, expert, sign in (
        (start, first, 1),
        (stop, first, -1),
        (start, last, -1),
        (stop, last, 1),
    ):
        np.add.at(counts, (row, expert), sign)
    return bool((counts.cumsum(axis=0).cumsum(axis=1)[:-1, :-1] == 1).all())
