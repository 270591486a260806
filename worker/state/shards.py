"""Where the state of the next plan will live on this rank, made ready while the old plan trains.

A shard whose rows stay the same is adopted: the very tensors that the old engine trains.  Every
other one is allocated and its memory touched, because first use of a page costs more than the
transfer into it.  Nothing here reads a number of the state, so it may change meanwhile.
A shard is what the seat owns of a tensor.  With ZeRO 1 that is less than what it multiplies; then
the fp32 weight of the shard is rows of that.
Source: the shadow band's destination shards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, held_tensors
from planner.plans.pieces import Piece, is_empty, owned, shard
from planner.plans.ranks import Seat
from planner.plans.state_rule import PARTS, PartNames
from worker.control.activity import Activity
from worker.device.device import CPU, Device
from worker.engine.seam import DTYPES, Buffers, Parts
from worker.model.boxes import box_shape, view
from worker.state.held_state import HeldState
from worker.training_settings import Precision

# Writes the parts of a box of a tensor, which are zero, into the tensors given.
Fill = Callable[[Tensor, Piece, Parts], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShards:
    """The destination shards of one seat, and what an engine works on beside them.

    Attributes:
        seat: in the new plan.
        shards: {tensor name: its parts}, of what the seat owns.
        buffers: of the engine, of what the seat holds; those of the old one for what is adopted,
            which therefore costs neither memory nor time.
        adopted: names of the shards that are those of the old plan.
        stale: names of the low-precision weights whose owned rows are to be filled from the shards.
    """

    seat: Seat
    shards: Mapping[str, Parts]
    buffers: Buffers
    adopted: frozenset[str]
    stale: frozenset[str]

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
        adopted, stale = set(), set()
        for tensor in held_tensors(model, seat.layers):
            name, box, mine = tensor.name, shard(tensor, seat), owned(tensor, seat)
            parts, weight, gradient = old = adopted_of(tensor, seat, held, precision)
            room = allocation(tensor, seat, old, precision)
            if room.weight is not None:
                weight = room.weight.on(device)
            if parts is not None:
                adopted.add(name)
            else:
                parts = tuple(one.on(device) for one in room.parts)
                if len(parts) < len(PARTS):
                    assert weight is not None
                    parts = (*view(tensor, box, (weight,), mine), *parts)
            if _precision_of(tensor, precision) == "fp32":
                weight = parts[0] if weight is None else weight
            elif room.weight is not None or mine != box or name not in adopted:
                stale.add(name)  # after a loss it may have rows that their owner has updated
            if room.gradient is not None:
                gradient = room.gradient.on(device)
            assert weight is not None
            assert gradient is not None
            shards[name], weights[name], gradients[name] = parts, weight, gradient
            activity.advance()
        buffers = Buffers(weights, gradients)
        return TargetShards(
            seat=seat,
            shards=shards,
            buffers=buffers,
            adopted=frozenset(adopted),
            stale=frozenset(stale),
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
            box = owned(tensor, seat)
            if not is_empty(box):
                device.load(target.shards[tensor.name], partial(fill, tensor, box))
            activity.advance()
        target.fill(model)
        return target

    @property
    def bytes_allocated(self) -> int:
        """Of the shards that are not adopted; buffers are not counted."""
        made = (parts for name, parts in self.shards.items() if name not in self.adopted)
        return sum(part.nbytes for parts in made for part in parts)

    def fill(self, model: ModelShape) -> None:
        """Write the owned rows of low-precision weights, once the shards have moved.

        Other rows come from their owners; see `worker.engine.spread`.
        """
        for tensor in held_tensors(model, self.seat.layers):
            if tensor.name in self.stale:
                box, mine = shard(tensor, self.seat), owned(tensor, self.seat)
                (rows,) = view(tensor, box, (self.buffers.weights[tensor.name],), mine)
                rows.copy_(self.shards[tensor.name][0])

    def view(self, tensor: Tensor, piece: Piece, parts: PartNames = PARTS) -> Parts:
        """Some parts of a piece of `tensor` within this rank's shard, to write into."""
        named = dict(zip(PARTS, self.shards[tensor.name], strict=True))
        return view(tensor, owned(tensor, self.seat), tuple(named[part] for part in parts), piece)


class Adopted(NamedTuple):
    """The tensors of an old layout that a new one takes over; None: it has to make them."""

    parts: Parts | None
    weight: torch.Tensor | None  # that is multiplied, where it is no part of the shard
    gradient: torch.Tensor | None


def adopted_of(tensor: Tensor, seat: Seat, held: HeldState, precision: Precision) -> Adopted:
    """What a rank that becomes `seat` need not make of a tensor.

    An fp32 weight that is multiplied is the shard's own or contains it, so both are adopted or
    neither: what arrives is written to no memory that the old plan trains on.
    """
    box, mine = shard(tensor, seat), owned(tensor, seat)
    parts, (weight, gradient) = held.exactly(mine), held.beside(box) or (None, None)
    if _precision_of(tensor, precision) != "fp32":
        return Adopted(parts, weight, gradient)
    if mine == box:
        return Adopted(parts, None, gradient)
    is_one = parts is not None and weight is not None and _share_memory(parts[0], weight)
    return Adopted(parts, weight, gradient) if is_one else Adopted(None, None, gradient)


class Room(NamedTuple):
    """A tensor that is to be made."""

    shape: list[int]
    dtype: torch.dtype = torch.float32

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize

    def on(self, device: Device) -> torch.Tensor:
        """The tensor, of zeros, its memory touched."""
        return torch.empty(self.shape, dtype=self.dtype, device=device.torch_device).zero_()


class Allocation(NamedTuple):
    """What a rank makes of a tensor.

    Attributes:
        parts: of the shard; without the first where that is rows of `weight`.
        weight: that is multiplied, where it is no part of the shard; None: none is made.
        gradient: None: none is made.
    """

    parts: tuple[Room, ...]
    weight: Room | None
    gradient: Room | None

    @property
    def num_bytes(self) -> int:
        """Of all of it."""
        return sum(one.num_bytes for one in (*self.parts, self.weight, self.gradient) if one)


def allocation(tensor: Tensor, seat: Seat, old: Adopted, precision: Precision) -> Allocation:
    """What a rank that becomes `seat` makes of a tensor beside what it adopts."""
    box, mine = shard(tensor, seat), owned(tensor, seat)
    whole, own = box_shape(tensor, box), box_shape(tensor, mine)
    kind = _precision_of(tensor, precision)
    parts, weight = (Room(own),) * len(PARTS) if old.parts is None else (), None
    if kind != "fp32":
        weight = Room(whole, DTYPES[kind]) if old.weight is None else None
    elif mine != box and parts:  # the shard is rows of what is multiplied
        parts, weight = parts[1:], Room(whole)
    return Allocation(parts, weight, Room(whole) if old.gradient is None else None)


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def bytes_to_make(model: ModelShape, seat: Seat, held: HeldState, precision: Precision) -> int:
    """Bytes that `TargetShards.of` allocates: parts, low-precision weights and gradients."""
    return sum(
        allocation(tensor, seat, adopted_of(tensor, seat, held, precision), precision).num_bytes
        for tensor in held_tensors(model, seat.layers)
    )


def _precision_of(tensor: Tensor, precision: Precision) -> Precision:
    """Of a tensor where it is multiplied or added."""
    return "fp32" if tensor.is_counted else precision
