"""How micro-batches add up: the loss by what each counts for, gradients in fp32."""

from __future__ import annotations

from collections.abc import Callable

import torch

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# logits, and the labels with the micro-batch's weight
LossOfBatch = Callable[[torch.Tensor, tuple[torch.Tensor, torch.Tensor]], torch.Tensor]


def weighted(loss: Loss, scale: Callable[[], float]) -> LossOfBatch:
    """The loss, which is fp32, weighted by what its labels count for, and scaled.

    So gradients in flight are as large as under any other plan, and overflow where they do.
    """

    def of_batch(logits: torch.Tensor, given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        labels, weight = given
        return loss(logits, labels) * (weight * scale()).float()  # nobody waits for it

    return of_batch


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
