"""One rank's place in a TP group, and the two functions that do all its communication.

Source: Megatron-LM's column and row parallel layers, as described in its paper.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from migration.transport import ReduceOp
from worker.world.group import Group


class TensorParallel(NamedTuple):
    """One rank's place in the TP group of its stage; `group` is None in a group of one."""

    size: int = 1
    slot: int = 0
    group: Group | None = None

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> None:
        """Reduce a tensor in place over the TP group."""
        if self.group is not None:
            self.group.all_reduce_(tensor, op)

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """Into a column-parallel region: as it is; backward, the partial gradients are summed."""
        return x if self.size == 1 else _apply(_Copy, x, self)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Out of a row-parallel region: partial results are summed; backward, as it is."""
        return x if self.size == 1 else _apply(_Reduce, x, self)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad.clone()
        ctx.tp.all_reduce_(grad)
        return grad, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        x = x.clone()
        tp.all_reduce_(x)
        return x

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def _apply(
    function: type[torch.autograd.Function], x: torch.Tensor, tp: TensorParallel
) -> torch.Tensor:
    result = function.apply(x, tp)
    assert isinstance(result, torch.Tensor)
    return result
