"""Boxes of tensors in memory: the shape of one, and where a box lies in another.

A box is a `Piece`: some rows of a tensor, of a stack of experts those of some experts.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from planner.model.tensors import Tensor
from planner.plans.pieces import Piece

CHUNK_BYTES = 16 << 20  # copied in about a millisecond, so nobody waits longer for one


def box_shape(tensor: Tensor, box: Piece) -> list[int]:
    """Sizes of a box of a tensor."""
    shape = list(tensor.shape)
    shape[tensor.row_dim] = box.stop - box.start
    if tensor.experts:
        shape[0] = box.expert_stop - box.expert_start
    return shape


def within(tensor: Tensor, box: Piece, piece: Piece) -> tuple[slice, ...]:
    """Where a piece lies in the numbers of a box that contains it."""
    found = [slice(None)] * len(tensor.shape)
    found[tensor.row_dim] = slice(piece.start - box.start, piece.stop - box.start)
    if tensor.experts:
        first = box.expert_start
        found[0] = slice(piece.expert_start - first, piece.expert_stop - first)
    return tuple(found)


def view(
    tensor: Tensor, box: Piece, parts: tuple[torch.Tensor, ...], piece: Piece
) -> tuple[torch.Tensor, ...]:
    """The parts of a piece within the parts of a box that contains it; no copy."""
    place = within(tensor, box, piece)
    return tuple(part[place] for part in parts)


def chunks_of(numbers: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views that hold the numbers of a tensor in order, each of at most `CHUNK_BYTES` or one."""
    if numbers.nbytes <= CHUNK_BYTES or numbers.dim() == 0:
        yield numbers
        return
    rows = CHUNK_BYTES // numbers[0].nbytes
    for start in range(0, len(numbers), max(1, rows)):
        if rows:
            yield numbers[start : start + rows]
        else:
            yield from chunks_of(numbers[start])
