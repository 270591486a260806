"""The state that one rank holds, readable by piece, whatever cut it came in.

A rank has what its seat owns; after a vote whose outcome it never learnt, that of two seats.  All
of it are boxes of tensors, so a piece is read by finding a box that contains it.  What an engine
multiplies beside it follows from the state, and is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from migration.slices import Slice
from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, held_tensors, layer_tensors, model_tensors
from planner.plans.pieces import Piece, owned, shard, tensor_pieces
from planner.plans.ranks import Seat
from planner.plans.regions import Cuts
from planner.plans.state_rule import PARTS, PartNames
from worker.engine.seam import Buffers, Parts
from worker.model.boxes import chunks_of, view


@dataclass(slots=True)
class HeldState:
    """Boxes of each part of each tensor."""

    model: ModelShape
    _boxes: dict[tuple[str, str], list[tuple[Piece, torch.Tensor]]] = field(default_factory=dict)
    _beside: dict[Piece, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def add_shards(
        self, seat: Seat, shards: Mapping[str, Parts], buffers: Buffers | None = None
    ) -> None:
        """Add what a rank owns at `seat`, with an engine's buffers; the live tensors, no copy."""
        for tensor in held_tensors(self.model, seat.layers):
            name, box = tensor.name, owned(tensor, seat)
            for part, numbers in zip(PARTS, shards[name], strict=True):
                self._boxes.setdefault((name, part), []).append((box, numbers))
            if buffers is not None:
                self._beside[shard(tensor, seat)] = buffers.weights[name], buffers.gradients[name]

    def exactly(self, box: Piece) -> Parts | None:
        """The parts of a box whose parts are all held as it is, else None."""
        found = []
        for part in PARTS:
            same = (n for held, n in self._boxes.get((box.tensor, part), ()) if held == box)
            numbers = next(same, None)
            if numbers is None:
                return None
            found.append(numbers)
        return tuple(found)

    def beside(self, box: Piece) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The engine's operand for a box, and its gradient; None if no engine has it."""
        return self._beside.get(box)

    def read_slice(self, wanted: Slice) -> Parts:
        """Views of the parts of a slice, as a transfer sends it."""
        return self.read(wanted.box, wanted.parts)

    def read(self, piece: Piece, parts: PartNames = PARTS) -> Parts:
        """Some parts of a piece: views where one box has it all, else joined from several.

        A rank with two layouts may hold the rows of a piece in several boxes only.

        Raises:
            KeyError: some row of a part of the piece is not held.
        """
        tensor = find_tensor(self.model, piece.tensor)
        return tuple(self._read(tensor, piece, part) for part in parts)

    def chunks(self, piece: Piece) -> list[Iterator[torch.Tensor]]:
        """Views of the chunks of each part of a piece, of a state that stands still."""
        return [chunks_of(part) for part in self.read(piece)]

    def _read(self, tensor: Tensor, piece: Piece, part: str) -> torch.Tensor:
        found: list[torch.Tensor] = []
        row = piece.start
        while row < piece.stop:
            box, numbers = self._longest_from(piece, part, row)
            rows = piece._replace(start=row, stop=min(box.stop, piece.stop))
            found += view(tensor, box, (numbers,), rows)
            row = rows.stop
        return found[0] if len(found) == 1 else torch.cat(found, dim=tensor.row_dim)

    def _longest_from(self, piece: Piece, part: str, row: int) -> tuple[Piece, torch.Tensor]:
        """The box that holds this row of all experts of the piece, and reaches furthest."""
        holding = [
            (box, numbers)
            for box, numbers in self._boxes.get((piece.tensor, part), ())
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
