"""Recomputation of activations in a backward pass.

Torch has this too (`torch.utils.checkpoint`), but imports its compiler for it, which takes 2 s of a
core in each rank, in the first step after a change.
Source: Chen et al., "Training deep nets with sublinear memory cost"; `selective` is Megatron-LM's:
the attention core alone.  Hooks of saved tensors and the early end are those of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

Function = Callable[..., torch.Tensor]


def computed_again(function: Function, *inputs: torch.Tensor) -> torch.Tensor:
    """Result of a function; its backward pass keeps the inputs, and calls it again.

    Args:
        function: gives the same numbers for the same inputs, whenever it is called; all ranks of a
            TP group call it together both times.
        inputs: all that it depends on besides weights.
    """
    if not torch.is_grad_enabled():
        return function(*inputs)
    again = _Again(function, inputs)
    with saved_tensors_hooks(again.count, again.take):
        return function(*inputs)


class _Again:
    """One call of a function, whose tensors the backward pass finds by their order."""

    def __init__(self, function: Function, inputs: tuple[torch.Tensor, ...]) -> None:
        self._function = function
        wanted = inputs[0].new_empty(0).requires_grad_()  # else nothing would be saved
        # Torch before 2.15 frees what a function has saved once its result is gone.
        self._saver = _Inputs.apply(wanted, *inputs)
        self._counted = 0
        self._found: dict[int, torch.Tensor] = {}

    def count(self, _: torch.Tensor) -> int:
        """The place of a tensor that the backward pass wants, in place of the tensor."""
        self._counted += 1
        return self._counted - 1

    def take(self, place: int) -> torch.Tensor:
        """The tensor of a place; the first that is asked for has all of them computed again."""
        if place not in self._found:
            self._compute()
        return self._found.pop(place)

    def _compute(self) -> None:
        found: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> None:
            found.append(tensor.detach())
            if len(found) == self._counted:  # nobody wants the result itself
                raise _Found

        def refuse(_: None) -> torch.Tensor:
            raise AssertionError("what is computed again has no backward pass of its own")

        saved = self._saver.grad_fn.saved_tensors
        inputs = [one.detach().requires_grad_(one.requires_grad) for one in saved]
        with suppress(_Found), torch.enable_grad(), saved_tensors_hooks(keep, refuse):
            self._function(*inputs)
        self._found = dict(enumerate(found))


class _Found(Exception):
    """All tensors that the backward pass wants are there."""


class _Inputs(torch.autograd.Function):
    """Saves inputs as autograd saves tensors, so that a function around may compute them again."""

    @staticmethod
    def forward(ctx: Any, wanted: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*inputs)
        return wanted.new_empty(0)

    @staticmethod
    def backward(*_: Any) -> Any:
        raise AssertionError("nothing depends on it")
