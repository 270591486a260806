"""Owners' rows of the weights to the other holders of a template, after an update or a move.

With ZeRO 1 a rank updates what it owns and multiplies all that it holds.
Invariant: all ranks of a set have the same messages in one order, sets ascending, as in
`worker.engine.bucket`; so sets that overlap never wait for each other.
Source: Rajbhandari et al., "ZeRO" (stage 1: the all-gather after the update).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from planner.cost.memory import WORKER_BUCKET
from planner.model.tensors import Tensor, held_tensors
from planner.plans.pieces import Piece, is_empty, owned, shard
from planner.plans.ranks import RankMap, Seat
from worker.engine.bucket import Bucket, Message, messages_of
from worker.engine.seam import StageBuild
from worker.model.boxes import box_shape, view
from worker.world.group import Ranks


class _Sent(NamedTuple):
    """A message, and the rank whose numbers all others take."""

    message: Message
    source: int


class Spread:
    """What one rank gives and gets; nothing without ZeRO, or with one replica."""

    def __init__(self, build: StageBuild, bucket: Bucket) -> None:
        """`bucket` has room for `WORKER_BUCKET` elements, or all that the rank holds."""
        self._build, self._bucket = build, bucket
        tensors = held_tensors(build.model, build.seat.layers)
        self._tensors = [tensor for tensor in tensors if not tensor.is_counted]  # all own all
        self._boxes: list[tuple[Tensor, Piece]] = []  # of each owner of what this rank holds
        self._sent = self._plan(RankMap.of(build.plan)) if build.plan.zero else ()

    def weights_(self) -> int:
        """Fill what this rank multiplies; a collective of the plan.

        Returns:
            Bytes that came from other ranks.
        """
        return self._fill(self._build.buffers.weights)

    def _fill(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """Fill all rows of the shards of this rank with those of their owners.

        Args:
            tensors: {tensor name: the shard, its owned rows up to date}, all of one type.
        """
        if not self._sent:
            return 0
        rows: dict[Piece, torch.Tensor] = {}
        for tensor, box in self._boxes:
            (rows[box],) = view(
                tensor, shard(tensor, self._build.seat), (tensors[tensor.name],), box
            )
        for message, source in self._sent:
            self._bucket.copy_(message, rows, self._build.world.groups[message.ranks], source)
        came = [one for one, source in self._sent if source != self._build.seat.rank]
        return sum(one.numel * rows[one.blocks[0][0]].element_size() for one in came)

    def whole_weights(self) -> Mapping[str, torch.Tensor]:
        """The fp32 weights of all that this rank holds; a collective.

        In low precision with ZeRO they come into the buffers of the gradients, which nobody needs
        after the last step.
        """
        build = self._build
        if build.spec.precision == "fp32":
            return build.buffers.weights
        if not build.plan.zero:
            return {name: parts[0] for name, parts in build.shards.items()}
        found = {name: parts[0] for name, parts in build.shards.items()}  # counted ones are whole
        for tensor in self._tensors:
            name, box, mine = tensor.name, shard(tensor, build.seat), owned(tensor, build.seat)
            (rows,) = view(tensor, box, (build.buffers.gradients[name],), mine)
            rows.copy_(found[name])
            found[name] = build.buffers.gradients[name]
        self._fill(found)
        return found

    def _plan(self, ranks: RankMap) -> tuple[_Sent, ...]:
        dense, experts = self._build.seat.owner_ranks
        by_set: dict[Ranks, list[Tensor]] = {}
        for tensor in self._tensors:
            by_set.setdefault(experts if tensor.experts else dense, []).append(tensor)
        return tuple(
            sent
            for of in sorted(by_set)
            if len(of) > 1
            for source in of
            for sent in self._of_owner(of, ranks.seats[source], by_set[of])
        )

    def _of_owner(self, ranks: Ranks, owner: Seat, tensors: Sequence[Tensor]) -> tuple[_Sent, ...]:
        shapes: dict[Piece, tuple[int, ...]] = {}
        for tensor in tensors:
            box = owned(tensor, owner)
            if not is_empty(box):
                self._boxes.append((tensor, box))
                shapes[box] = tuple(box_shape(tensor, box))
        messages = messages_of({ranks: list(shapes)}, shapes, WORKER_BUCKET)
        return tuple(_Sent(message, owner.rank) for message in messages)
