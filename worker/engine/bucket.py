"""Gradients go through one buffer of bounded size: what does not fit waits for what is on its way.

Invariant: which numbers share a message follows from the pieces alone, so all ranks of a set send
messages of the same sizes in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from planner.plans.pieces import Piece
from worker.world.group import Group, Ranks
from worker.world.wire import Work

Index = tuple[int | slice, ...]  # of a block within a tensor
Block = tuple[Piece, Index]


class Message(NamedTuple):
    """One message of the bucket.

    Attributes:
        ranks: who has it.
        blocks: parts of pieces, one after the other.
        numel: elements of all of them.
    """

    ranks: Ranks
    blocks: tuple[Block, ...]
    numel: int


def messages_of(
    pieces: Mapping[Ranks, Sequence[Piece]],
    shapes: Mapping[Piece, tuple[int, ...]],
    most: int,
) -> tuple[Message, ...]:
    """All messages of at most so many elements, set by set in ascending order.

    One order everywhere: groups that overlap would wait for each other in any other.
    """
    found: list[Message] = []
    for ranks in sorted(pieces):
        blocks: list[Block] = []
        numel = 0
        for piece in pieces[ranks]:
            for index, size in _blocks(shapes[piece], most):
                if blocks and numel + size > most:
                    found.append(Message(ranks, tuple(blocks), numel))
                    blocks, numel = [], 0
                blocks.append((piece, index))
                numel += size
        if blocks:
            found.append(Message(ranks, tuple(blocks), numel))
    return tuple(found)


def _blocks(shape: tuple[int, ...], most: int) -> Iterator[tuple[Index, int]]:
    """A tensor in blocks of whole rows, or of parts of them where one row is too large."""
    row = math.prod(shape[1:])
    if row * shape[0] <= most:
        yield (), row * shape[0]
    elif row <= most:
        rows = most // row
        for start in range(0, shape[0], rows):
            stop = min(start + rows, shape[0])
            yield (slice(start, stop),), (stop - start) * row
    else:
        for index in range(shape[0]):
            for rest, size in _blocks(shape[1:], most):
                yield (index, *rest), size


class Bucket:
    """The buffer of one rank.

    Attributes:
        memory: fp32; messages on their way take parts of it.
    """

    def __init__(self, numel: int, device: torch.device) -> None:
        self.memory = torch.zeros(numel, device=device)
        self._used = 0
        self._pending: list[tuple[Group, Work, torch.Tensor, list[torch.Tensor]]] = []

    def sum_(self, message: Message, gradients: Mapping[Piece, torch.Tensor], group: Group) -> None:
        """Begin to sum a message over its ranks; `finish` writes the sums where they belong."""
        if self._used + message.numel > len(self.memory):
            self.finish()
        flat, targets = self._packed(message, gradients)
        self._pending.append((group, group.start_all_reduce_(flat), flat, targets))

    def copy_(
        self, message: Message, gradients: Mapping[Piece, torch.Tensor], group: Group, source: int
    ) -> None:
        """Give all ranks of a message the numbers of rank `source`; nothing else is on its way.

        They may be of a type that has at most the bytes of fp32.
        """
        flat, targets = self._packed(message, gradients)
        group.broadcast_(flat, source)
        _unpack(flat, targets)
        self._used = 0

    def finish(self) -> None:
        """Wait for all that is on its way."""
        for group, work, flat, targets in self._pending:
            group.finish(work)
            _unpack(flat, targets)
        self._pending.clear()
        self._used = 0

    def _packed(
        self, message: Message, gradients: Mapping[Piece, torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        targets = [gradients[piece][index] for piece, index in message.blocks]
        memory = self.memory.view(targets[0].dtype)
        flat = memory[self._used : self._used + message.numel]
        self._used += message.numel
        for part, target in zip(_parts(flat, targets), targets, strict=True):
            part.copy_(target)
        return flat, targets


def _parts(flat: torch.Tensor, targets: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Views of a flat tensor in the shapes of the targets."""
    sizes = [target.numel() for target in targets]
    for part, target in zip(torch.split(flat, sizes), targets, strict=True):
        yield part.view(target.shape)


def _unpack(flat: torch.Tensor, targets: Sequence[torch.Tensor]) -> None:
    for part, target in zip(_parts(flat, targets), targets, strict=True):
        target.copy_(part)
