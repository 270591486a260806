"""Rows of tokens on their way between ranks, and back in the backward pass.

Invariant: each function is linear, and its backward pass is the way back: what is sent is
received, what is gathered is summed.  Ranks without a row take part all the same, both ways.
Sums go in the order of the ranks, so every rank gets the same bits.

Legend: n ranks of a group, h width of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from worker.world.group import Group

Sizes = Sequence[int]  # rows by member of a group
Way = Callable[[torch.Tensor], torch.Tensor]


class Place(NamedTuple):
    """One rank in a group, and its number among the members."""

    group: Group
    number: int


def exchanged(x: torch.Tensor, group: Group, to: Sizes, come: Sizes) -> torch.Tensor:
    """The rows that the members of a group send to this one, member by member.

    Args:
        x: rows of this rank, member by member.
        group: of the ranks.
        to: how many of them each member gets.
        come: how many each member sends.
    """
    return _linear(
        x, lambda rows: _send(rows, group, to, come), lambda grad: _send(grad, group, come, to)
    )


def gathered(x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
    """The rows of all members, one member after the other; their gradients are summed."""
    return _linear(
        x, lambda rows: _gathered(rows, place, sizes), lambda grad: _summed(grad, place, sizes)
    )


def summed(x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
    """Of rows of all members, the sum over the ranks of those that are this rank's own."""
    return _linear(
        x, lambda rows: _summed(rows, place, sizes), lambda grad: _gathered(grad, place, sizes)
    )


def joined(x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
    """As `gathered`, where all ranks go on alike, so each has the whole gradient of its rows."""
    return _linear(
        x, lambda rows: _gathered(rows, place, sizes), lambda grad: _own(grad, place, sizes)
    )


def cut(x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
    """This rank's rows of those that all ranks have alike; the gradient is that of all rows."""
    return _linear(
        x, lambda rows: _own(rows, place, sizes).clone(), lambda grad: _gathered(grad, place, sizes)
    )


def _send(x: torch.Tensor, group: Group, to: Sizes, come: Sizes) -> torch.Tensor:
    found = x.new_empty(sum(come), *x.shape[1:])
    group.all_to_all_(found, x.contiguous(), come, to)
    return found


def _gathered(x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
    copies = x.expand(len(sizes), *x.shape).flatten(0, 1)
    return _send(copies, place.group, [len(x)] * len(sizes), sizes)


def _summed(x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
    own = sizes[place.number]
    parts = _send(x, place.group, sizes, [own] * len(sizes))
    total, *others = parts.view(len(sizes), own, *x.shape[1:]).unbind()
    for other in others:
        total = total + other
    return total


def _own(x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
    return x.narrow(0, sum(sizes[: place.number]), sizes[place.number])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Way, back: Way) -> torch.Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.back(grad), None, None


def _linear(x: torch.Tensor, there: Way, back: Way) -> torch.Tensor:
    """`there` of the rows; `back` of their gradient."""
    result = _Linear.apply(x, there, back)
    assert isinstance(result, torch.Tensor)
    return result
