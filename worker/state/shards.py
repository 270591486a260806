"""Where the state of the next plan will live on this rank, made ready while the old plan trains.

A shard whose rows stay the same is adopted: the very tensors that the old engine trains.  Every
other one is allocated and its memory touched, because first use of a page costs more than the
transfer into it.  Nothing here reads a number of the state, so it may change meanwhile.
Source: the shadow band's destination shards; design, "Transactional".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, held_tensors
from planner.plans.pieces import Piece, shard
from planner.plans.ranks import Seat
from planner.plans.state_rule import PARTS, PartNames, copies, element_bytes
from worker.control.activity import Activity
from worker.device.device import CPU, Device
from worker.engine.seam import DTYPES, Buffers, Parts
from worker.model.boxes import box_shape, view
from worker.state.held_state import HeldState
from worker.training_settings import Precision

GRADIENT_BYTES = 4  # of an element; fp32
# Writes the parts of a box of a tensor, which are zero, into the tensors given.
Fill = Callable[[Tensor, Piece, Parts], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShards:
    """The destination shards of one seat, and what an engine works on beside them.

    Attributes:
        seat: in the new plan.
        shards: {tensor name: its parts}.
        buffers: of the engine; those of the old one for what is adopted, which therefore costs
            neither memory nor time.
        adopted: names of the shards that are those of the old plan.
        stale: names of the low-precision weights that are to be filled from the shards.
        bytes_allocated: for the others, buffers not counted.
    """

    seat: Seat
    shards: Mapping[str, Parts]
    buffers: Buffers
    adopted: frozenset[str]
    stale: frozenset[str]
    bytes_allocated: int

    @staticmethod
    def of(
        model: ModelShape,
        seat: Seat,
        held: HeldState,
        activity: Activity,
        precision: Precision = "fp32",
        device: Device = CPU,
    ) -> TargetShards:
        """Adopt what `held` has in the very cut of `seat`, and allocate the rest."""
        shards: dict[str, Parts] = {}
        weights: dict[str, torch.Tensor] = {}
        gradients: dict[str, torch.Tensor] = {}
        adopted, stale, allocated = set(), set(), 0
        for tensor in held_tensors(model, seat.layers):
            name, box = tensor.name, shard(tensor, seat)
            parts, beside = held.exactly(box), held.beside(box)
            if parts is not None:
                adopted.add(name)
            else:
                parts = tuple(_room(box_shape(tensor, box), device) for _ in PARTS)
                allocated += sum(part.nbytes for part in parts)
            shards[name] = parts
            if beside is None:
                kind = _precision_of(tensor, precision)
                beside = _weight_of(parts, kind, device), _room(box_shape(tensor, box), device)
                if kind != "fp32":
                    stale.add(name)
            weights[name], gradients[name] = beside
            activity.advance()
        buffers = Buffers(weights, gradients)
        return TargetShards(
            seat=seat,
            shards=shards,
            buffers=buffers,
            adopted=frozenset(adopted),
            stale=frozenset(stale),
            bytes_allocated=allocated,
        )

    @staticmethod
    def first(
        model: ModelShape,
        seat: Seat,
        fill: Fill,
        activity: Activity,
        precision: Precision = "fp32",
        device: Device = CPU,
    ) -> TargetShards:
        """The state that a job starts with: every shard as its source fills it."""
        target = TargetShards.of(model, seat, HeldState(model), activity, precision, device)
        for tensor in held_tensors(model, seat.layers):
            box = shard(tensor, seat)
            device.load(target.shards[tensor.name], partial(fill, tensor, box))
            activity.advance()
        target.fill()
        return target

    def fill(self) -> None:
        """Write the low-precision weights of what was not adopted, once the shards have moved."""
        for name in self.stale:
            self.buffers.weights[name].copy_(self.shards[name][0])

    def view(self, tensor: Tensor, piece: Piece, parts: PartNames = PARTS) -> Parts:
        """Some parts of a piece of `tensor` within this rank's shard, to write into."""
        named = dict(zip(PARTS, self.shards[tensor.name], strict=True))
        return view(tensor, shard(tensor, self.seat), tuple(named[part] for part in parts), piece)


def bytes_to_make(
    model: ModelShape, seat: Seat, held: HeldState, precision: Precision = "fp32"
) -> int:
    """Bytes that `TargetShards.of` allocates: parts, low-precision weights and gradients."""
    total = 0
    for tensor in held_tensors(model, seat.layers):
        box = shard(tensor, seat)
        numel = math.prod(box_shape(tensor, box))
        if held.exactly(box) is None:
            total += numel * element_bytes(PARTS)
        if held.beside(box) is None:
            kept = copies(_precision_of(tensor, precision))
            total += numel * (element_bytes(kept) + GRADIENT_BYTES)
    return total


def _precision_of(tensor: Tensor, precision: Precision) -> Precision:
    """Of a tensor where it is multiplied or added."""
    return "fp32" if tensor.is_counted else precision


def _room(shape: list[int], device: Device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of zeros, its memory touched."""
    return torch.empty(shape, dtype=dtype, device=device.torch_device).zero_()


def _weight_of(parts: Parts, precision: Precision, device: Device) -> torch.Tensor:
    """The operand of products: the weight itself, or room for its copy."""
    return parts[0] if precision == "fp32" else _room([*parts[0].shape], device, DTYPES[precision])
