"""Where the gradients of a parameter add up over micro-batches: in fp32, whatever its type is."""

from __future__ import annotations

import torch


def accumulate(parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
    """Let the gradients of a parameter add up in fp32, micro-batch by micro-batch."""
    if parameter.dtype == gradient.dtype:
        parameter.grad = gradient  # which the backward pass adds to
        return

    def add(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None  # called when it has just been written
        gradient.add_(parameter.grad)
        parameter.grad = None

    parameter.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call] # torch's
