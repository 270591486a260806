"""The state that one rank holds, readable by piece, whatever cut it came in.

A rank holds the shards of its seat; after a vote whose outcome it never learnt, those of two seats.
Every shard is a box of a tensor, so a piece is read by finding a box that contains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from migration.slices import Slice
from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, held_tensors, layer_tensors, model_tensors
from planner.plans.pieces import Piece, shard, tensor_pieces
from planner.plans.ranks import Seat
from planner.plans.regions import Cuts
from worker.engine.seam import Buffers, Parts


def view(tensor: Tensor, box: Piece, parts: Parts, piece: Piece) -> Parts:
    """The parts of a piece within the parts of a box that contains it; no copy."""
    rows = piece.stop - piece.start
    found = tuple(p.narrow(tensor.row_dim, piece.start - box.start, rows) for p in parts)
    if not tensor.experts:
        return found
    experts = piece.expert_stop - piece.expert_start
    return tuple(part.narrow(0, piece.expert_start - box.expert_start, experts) for part in found)


@dataclass(slots=True)
class HeldState:
    """Boxes of tensors with their parts (weight, exp_avg, exp_avg_sq)."""

    model: ModelShape
    _boxes: dict[str, list[tuple[Piece, Parts]]] = field(default_factory=dict)
    _beside: dict[Piece, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def add_shards(
        self, seat: Seat, shards: Mapping[str, Parts], buffers: Buffers | None = None
    ) -> None:
        """Add what a rank holds at `seat`, with an engine's buffers; the live tensors, no copy."""
        for tensor in held_tensors(self.model, seat.layers):
            name, box = tensor.name, shard(tensor, seat)
            self._boxes.setdefault(name, []).append((box, shards[name]))
            if buffers is not None:
                self._beside[box] = buffers.weights[name], buffers.gradients[name]

    def exactly(self, box: Piece) -> Parts | None:
        """The parts of a box that is held as it is, else None."""
        for held, parts in self._boxes.get(box.tensor, ()):
            if held == box:
                return parts
        return None

    def beside(self, box: Piece) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The engine's operand for a box, and its gradient; None if no engine has it."""
        return self._beside.get(box)

    def read_slice(self, wanted: Slice) -> Parts:
        """Views of the parts of a slice, as a transfer sends it."""
        return self.read(wanted.box)

    def read(self, piece: Piece) -> Parts:
        """The parts of a piece: views where one box has it all, else joined from several.

        A rank with two layouts may hold the rows of a piece in parts only.

        Raises:
            KeyError: some row of the piece is not held.
        """
        tensor = find_tensor(self.model, piece.tensor)
        found: list[Parts] = []
        row = piece.start
        while row < piece.stop:
            box, parts = self._longest_from(piece, row)
            rows = piece._replace(start=row, stop=min(box.stop, piece.stop))
            found.append(view(tensor, box, parts, rows))
            row = rows.stop
        if len(found) == 1:
            return found[0]
        return tuple(torch.cat(parts, dim=tensor.row_dim) for parts in zip(*found, strict=True))

    def _longest_from(self, piece: Piece, row: int) -> tuple[Piece, Parts]:
        """The box that holds this row of all experts of the piece, and reaches furthest."""
        holding = [
            (box, parts)
            for box, parts in self._boxes.get(piece.tensor, ())
            if box.start <= row < box.stop
            and box.expert_start <= piece.expert_start
            and piece.expert_stop <= box.expert_stop
        ]
        if not holding:
            raise KeyError(piece)
        return max(holding, key=lambda held: held[0].stop)


def find_tensor(model: ModelShape, name: str) -> Tensor:
    """The tensor of that name."""
    return next(t for t in layer_tensors(model, int(name.split(".")[0])) if t.name == name)


def all_pieces(model: ModelShape, cuts: Cuts) -> tuple[Piece, ...]:
    """Every piece of the model in canonical order."""
    return tuple(piece for tensor in model_tensors(model) for piece in tensor_pieces(tensor, cuts))
