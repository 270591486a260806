"""Rows of tokens on their way between ranks, and back in the backward pass.

Invariant: each function is linear, and its backward pass is the way back: what is sent is
received, what is gathered is summed.  Ranks without a row take part all the same, both ways.
Sums go in the order of the ranks, so every rank gets the same bits.

Legend: n ranks of a group, h width of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from worker.world.group import Group

Sizes = Sequence[int]  # rows by member of a group


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
    return _apply(_Exchange, x, group, to, come)


def gathered(x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
    """The rows of all members, one member after the other; their gradients are summed."""
    return _apply(_Gather, x, place, sizes)


def summed(x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
    """Of rows of all members, the sum over the ranks of those that are this rank's own."""
    return _apply(_Sum, x, place, sizes)


def joined(x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
    """As `gathered`, where all ranks go on alike, so each has the whole gradient of its rows."""
    return _apply(_Join, x, place, sizes)


def cut(x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
    """This rank's rows of those that all ranks have alike; the gradient is that of all rows."""
    return _apply(_Cut, x, place, sizes)


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


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, to: Sizes, come: Sizes) -> torch.Tensor:
        ctx.way = group, to, come
        return _send(x, group, to, come)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        group, to, come = ctx.way
        return _send(grad, group, come, to), None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
        ctx.way = place, sizes
        return _gathered(x, place, sizes)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        place, sizes = ctx.way
        return _summed(grad, place, sizes), None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
        ctx.way = place, sizes
        return _summed(x, place, sizes)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        place, sizes = ctx.way
        return _gathered(grad, place, sizes), None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
        ctx.way = place, sizes
        return _gathered(x, place, sizes)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        place, sizes = ctx.way
        return _own(grad, place, sizes), None, None


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, place: Place, sizes: Sizes) -> torch.Tensor:
        ctx.way = place, sizes
        return _own(x, place, sizes).clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        place, sizes = ctx.way
        return _gathered(grad, place, sizes), None, None


def _apply(function: type[torch.autograd.Function], x: torch.Tensor, *way: object) -> torch.Tensor:
    result = function.apply(x, *way)
    assert isinstance(result, torch.Tensor)
    return result
