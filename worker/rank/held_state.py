"""The state that one rank holds, readable by piece, whatever cut it came in.

A rank holds the shards of its engine; in a move it also holds the pieces that have arrived, and
after a failure possibly both.  Everything is an interval of rows of a tensor, so a piece is read by
finding an interval that contains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, layer_tensors, model_tensors
from planner.plans.pieces import Piece, held_pieces
from planner.plans.ranks import Seat
from worker.engine.seam import Parts


@dataclass(slots=True)
class HeldState:
    """Intervals of tensors with their parts (weight, exp_avg, exp_avg_sq)."""

    model: ModelShape
    _intervals: dict[str, list[tuple[int, int, Parts]]] = field(default_factory=dict)

    def add_shards(self, seat: Seat, shards: Mapping[str, Parts]) -> None:
        """Add what an engine at `seat` holds; the live tensors, no copy."""
        for layer in seat.layers:
            for tensor in layer_tensors(self.model, layer):
                start, stop = 0, 1
                if tensor.dim is not None:
                    size = tensor.shape[tensor.dim]
                    start, stop = seat.slot * size // seat.tp, (seat.slot + 1) * size // seat.tp
                self._intervals.setdefault(tensor.name, []).append(
                    (start, stop, shards[tensor.name])
                )

    def add_pieces(self, pieces: Mapping[Piece, Parts]) -> None:
        """Add pieces that have arrived."""
        for piece, parts in pieces.items():
            self._intervals.setdefault(piece.tensor, []).append((piece.start, piece.stop, parts))

    def read(self, piece: Piece) -> Parts:
        """The parts of a piece: views where one interval has it all, else joined from several.

        A rank whose engine never came up holds old shards and the pieces that arrived beside them;
        the next refinement may cut across both.

        Raises:
            KeyError: some row of the piece is not held.
        """
        tensor = _tensor(self.model, piece.tensor)
        if tensor.dim is None:
            for _, _, parts in self._intervals.get(piece.tensor, ()):
                return parts
            raise KeyError(piece)
        found: list[Parts] = []
        row = piece.start
        while row < piece.stop:
            start, stop, parts = self._longest_from(piece, row)
            rows = min(stop, piece.stop) - row
            found.append(tuple(part.narrow(tensor.dim, row - start, rows) for part in parts))
            row += rows
        if len(found) == 1:
            return found[0]
        dim = tensor.dim
        return tuple(torch.cat(parts, dim=dim) for parts in zip(*found, strict=True))

    def _longest_from(self, piece: Piece, row: int) -> tuple[int, int, Parts]:
        """The interval that holds this row and reaches furthest."""
        holding = [
            interval
            for interval in self._intervals.get(piece.tensor, ())
            if interval[0] <= row < interval[1]
        ]
        if not holding:
            raise KeyError(piece)
        return max(holding, key=lambda interval: interval[1])

    def shard(self, tensor: Tensor, seat: Seat, tp_degrees: frozenset[int]) -> Parts:
        """This seat's shard of a tensor, assembled from pieces: fresh contiguous tensors."""
        found = [self.read(piece) for piece in held_pieces(tensor, seat.tp, seat.slot, tp_degrees)]
        return tuple(torch.cat(parts, dim=tensor.dim or 0) for parts in zip(*found, strict=True))


def _tensor(model: ModelShape, name: str) -> Tensor:
    return next(t for t in layer_tensors(model, int(name.split(".")[0])) if t.name == name)


def all_pieces(model: ModelShape, tp_degrees: frozenset[int]) -> tuple[Piece, ...]:
    """Every piece of the model in canonical order."""
    from planner.plans.pieces import tensor_pieces

    return tuple(
        piece for tensor in model_tensors(model) for piece in tensor_pieces(tensor, tp_degrees)
    )
