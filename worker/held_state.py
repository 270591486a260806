"""The state that one rank holds, readable by piece, whatever cut it came in.

A rank holds the shards of its engine; in a move it also holds the pieces that have arrived, and
after a failure possibly both.  Everything is an interval of rows of a tensor, so a piece is read by
finding an interval that contains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from planner.pieces import Piece, held_pieces
from planner.ranks import Seat
from planner.tensors import Tensor, layer_tensors, model_tensors
from planner.workload import ModelShape
from worker.engine import Parts


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
        """The parts of a piece, as views.

        Raises:
            KeyError: the piece is not held.
        """
        tensor = _tensor(self.model, piece.tensor)
        for start, stop, parts in self._intervals.get(piece.tensor, ()):
            if start <= piece.start and piece.stop <= stop:
                if tensor.dim is None:
                    return parts
                dim, first, rows = tensor.dim, piece.start - start, piece.stop - piece.start
                return tuple(part.narrow(dim, first, rows) for part in parts)
        raise KeyError(piece)

    def shard(self, tensor: Tensor, seat: Seat, tp_degrees: frozenset[int]) -> Parts:
        """This seat's shard of a tensor, assembled from pieces: fresh contiguous tensors."""
        found = [self.read(piece) for piece in held_pieces(tensor, seat.tp, seat.slot, tp_degrees)]
        return tuple(torch.cat(parts, dim=tensor.dim or 0) for parts in zip(*found, strict=True))


def _tensor(model: ModelShape, name: str) -> Tensor:
    return next(t for t in layer_tensors(model, int(name.split(".")[0])) if t.name == name)


def all_pieces(model: ModelShape, tp_degrees: frozenset[int]) -> tuple[Piece, ...]:
    """Every piece of the model in canonical order."""
    from planner.pieces import tensor_pieces

    return tuple(
        piece for tensor in model_tensors(model) for piece in tensor_pieces(tensor, tp_degrees)
    )
