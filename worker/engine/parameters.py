"""The parameters of a stage, on weights and gradients that somebody else owns.

A tensor that two layers of the stage hold is one parameter.  Gradients add up in fp32, micro-batch
by micro-batch, whatever the precision of the weights.
"""

from __future__ import annotations

import torch

from planner.model.tensors import Tensor, held_tensors
from planner.plans.pieces import Piece, held_pieces, shard
from planner.plans.regions import Cuts
from worker.engine.accumulation import accumulate
from worker.engine.seam import Buffers, StageBuild
from worker.errors import EngineFailed
from worker.model.boxes import view


class StageParameters:
    """Parameters by tensor name, made as the layers ask for them."""

    def __init__(self, buffers: Buffers) -> None:
        """Build none yet."""
        self._buffers = buffers
        self._named: dict[str, torch.nn.Parameter] = {}

    def of(self, tensor: Tensor) -> torch.nn.Parameter:
        """The parameter on this rank's shard of a tensor."""
        if tensor.name not in self._named:
            self._named[tensor.name] = torch.nn.Parameter(self._buffers.weights[tensor.name])
        return self._named[tensor.name]

    def add_up(self) -> None:
        """Send all gradients to the buffers.

        Raises:
            EngineFailed: a parameter is not where its weight was.
        """
        for name, parameter in self._named.items():
            if parameter.data_ptr() != self._buffers.weights[name].data_ptr():
                raise EngineFailed(f"DeepSpeed has moved {name} to another place in memory")
            accumulate(parameter, self._buffers.gradients[name])


def gradient_pieces(build: StageBuild, cuts: Cuts) -> dict[Piece, torch.Tensor]:
    """A view of the gradient of each piece that a rank holds, at the refinement of its plan."""
    found: dict[Piece, torch.Tensor] = {}
    for tensor in held_tensors(build.model, build.seat.layers):
        gradient = build.buffers.gradients[tensor.name]
        box = shard(tensor, build.seat)
        for piece in held_pieces(tensor, build.seat, cuts):
            (found[piece],) = view(tensor, box, (gradient,), piece)
    return found
