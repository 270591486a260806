"""The line of a class: all rows of its pieces one after the other, and slices cut from it.

A place on the line is a byte; a cut falls on the nearest row, so that whoever cuts at the same byte
cuts at the same row, and no slice ends inside one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from migration.classes import MovingClass
from planner.model.tensors import Tensor, layer_tensors
from planner.plans.pieces import Piece, region_pieces
from planner.plans.regions import Regions
from planner.plans.state_rule import PARTS, PartNames, element_bytes


class Slice(NamedTuple):
    """Rows `[start, stop)` of a piece, all its named parts together.

    Attributes:
        piece: of the table; of a stack of experts possibly fewer of its experts.
        start, stop: rows of the tensor, within those of the piece.
        parts: of the state that travel.
    """

    piece: Piece
    start: int
    stop: int
    parts: PartNames = PARTS

    @property
    def box(self) -> Piece:
        """The slice as the piece that it is."""
        return self.piece._replace(start=self.start, stop=self.stop)


@dataclass(frozen=True, slots=True)
class Line:
    """The pieces of a class in canonical order.

    Attributes:
        parts: of the state that move.
        pieces: one after the other.
        row_bytes: of one row of each, all parts together.
        ends: where each piece ends, in bytes.
    """

    parts: PartNames
    pieces: tuple[Piece, ...]
    row_bytes: tuple[int, ...]
    ends: tuple[int, ...]

    def slices(self, start: int, stop: int) -> Iterator[tuple[Slice, int]]:
        """(slice, its bytes) of the bytes `[start, stop)`, to the nearest rows."""
        (first, low), (last, high) = self._row(start), self._row(stop)
        for index in range(first, min(last + 1, len(self.pieces))):
            piece = self.pieces[index]
            a = low if index == first else 0
            b = high if index == last else _rows(piece)
            for part in _boxes(piece, self.parts, a, b):
                box = part.box
                yield part, _rows(box) * self.row_bytes[index]

    def _row(self, byte: int) -> tuple[int, int]:
        """(piece, row of all rows of its experts) nearest to a byte."""
        index = bisect_right(self.ends, byte)
        if index == len(self.ends):
            return index, 0
        start = self.ends[index - 1] if index else 0
        size = self.row_bytes[index]
        row = (byte - start + size // 2) // size
        return (index, row) if row < _rows(self.pieces[index]) else (index + 1, 0)


def line_of(regions: Regions, one: MovingClass) -> Line:
    """The line of a class."""
    held = np.zeros(len(regions), dtype=bool)
    held[list(one.regions)] = True
    pieces = region_pieces(regions, held)
    tensors: dict[str, Tensor] = {}
    for layer in sorted({int(regions.layer[region]) for region in one.regions}):
        tensors.update({tensor.name: tensor for tensor in layer_tensors(regions.model, layer)})
    row_bytes = tuple(
        tensors[piece.tensor].row_numel * element_bytes(one.parts) for piece in pieces
    )
    sizes = (_rows(piece) * size for piece, size in zip(pieces, row_bytes, strict=True))
    return Line(one.parts, pieces, row_bytes, tuple(accumulate(sizes)))


def _rows(piece: Piece) -> int:
    """Rows of all its experts together."""
    return (piece.stop - piece.start) * (piece.expert_stop - piece.expert_start)


def _boxes(piece: Piece, parts: PartNames, start: int, stop: int) -> Iterator[Slice]:
    """Rows `[start, stop)`, counted expert by expert, as slices.

    Some rows of one expert, whole experts, some rows of another.
    """
    rows = piece.stop - piece.start
    while start < stop:
        expert, row = divmod(start, rows)
        count = max(1, (stop - start) // rows) if not row else 1
        end = min(stop, (expert + count) * rows)
        first = piece.expert_start + expert
        some = piece._replace(expert_start=first, expert_stop=first + count)
        low = piece.start + row
        yield Slice(some, low, low + min(end - start, rows), parts)
        start = end
