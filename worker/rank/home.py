"""Where the state of the next plan will live on this rank, made ready while the old plan trains.

A shard whose rows stay the same is adopted: the very tensors that the old engine trains.  Every
other one is allocated and its memory touched, because first use of a page costs more than the
transfer into it.  Nothing here reads a number of the state, so it may change meanwhile.
Source: the shadow band's home shards; design, "Transactional".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, layer_tensors
from planner.plans.pieces import Piece, shard
from planner.plans.ranks import Seat
from worker.control.activity import Activity
from worker.engine.seam import Parts
from worker.rank.held_state import HeldState, view

PARTS = 3  # weight, exp_avg, exp_avg_sq
# Rows [start, stop) of a tensor's first weight, fp32, a tensor of its own.
FirstRows = Callable[[Tensor, int, int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Home:
    """The destination shards of one seat.

    Attributes:
        seat: in the new plan.
        shards: {tensor name: its parts}.
        adopted: names of the shards that are those of the old plan.
        bytes_allocated: for the others.
    """

    seat: Seat
    shards: Mapping[str, Parts]
    adopted: frozenset[str]
    bytes_allocated: int

    @staticmethod
    def of(model: ModelShape, seat: Seat, held: HeldState, activity: Activity) -> Home:
        """Adopt what `held` has in the very cut of `seat`, and allocate the rest."""
        shards: dict[str, Parts] = {}
        adopted, allocated = set(), 0
        for layer in seat.layers:
            for tensor in layer_tensors(model, layer):
                box = shard(tensor, seat)
                parts = held.exactly(box)
                if parts is not None:
                    adopted.add(tensor.name)
                else:
                    parts = tuple(torch.empty(_shape(tensor, box)).zero_() for _ in range(PARTS))
                    allocated += sum(part.nbytes for part in parts)
                shards[tensor.name] = parts
                activity.advance()
        return Home(seat, shards, frozenset(adopted), allocated)

    @staticmethod
    def first(model: ModelShape, seat: Seat, rows: FirstRows, activity: Activity) -> Home:
        """The state that a job starts with: the first weights, moments of zero."""
        shards: dict[str, Parts] = {}
        for layer in seat.layers:
            for tensor in layer_tensors(model, layer):
                box = shard(tensor, seat)
                weight = rows(tensor, box.start, box.stop)
                moments = (torch.zeros_like(weight) for _ in range(PARTS - 1))
                shards[tensor.name] = (weight, *moments)
                activity.advance()
        size = sum(part.nbytes for parts in shards.values() for part in parts)
        return Home(seat, shards, frozenset(), size)

    def view(self, tensor: Tensor, piece: Piece) -> Parts:
        """The parts of a piece of `tensor` within this rank's shard, to write into."""
        return view(tensor, shard(tensor, self.seat), self.shards[tensor.name], piece)


def _shape(tensor: Tensor, box: Piece) -> list[int]:
    shape = list(tensor.shape)
    shape[tensor.row_dim] = box.stop - box.start
    if tensor.experts:
        shape[0] = box.expert_stop - box.expert_start
    return shape
