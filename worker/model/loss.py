"""Mean cross entropy over vocabulary-parallel logits, some tokens at a time.

What the head gave is kept in the precision of training, and so is its gradient; fp32 is only what
some tokens need at a time.  A token's loss is three numbers over all ranks of the TP group: a
maximum, a sum of exponentials and the target's logit.  The backward pass computes the
exponentials again.
Source: Megatron-LM's vocabulary-parallel cross entropy, as described in its paper.

Legend: b micro-batch, S sequence, V vocabulary, t TP degree, n = b * S tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from worker.model.parallel import TensorParallel
from worker.training_settings import IGNORED

# Logits that are in fp32 at a time: they stay in a processor's cache; on a device they are large
# beside the launch of a kernel.
HOST_AT_ONCE, DEVICE_AT_ONCE = 1 << 18, 1 << 24


def vocabulary_loss(tp: TensorParallel) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The loss of logits [b, S, V / t] and labels [b, S]: the mean over those that are not IGNORED.

    It is fp32, and 0 where no label is left.
    """

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        found = _CrossEntropy.apply(logits.flatten(0, 1), labels.flatten(), tp)
        assert isinstance(found, torch.Tensor)
        return found

    return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, tp: TensorParallel
    ) -> torch.Tensor:
        """[n, V / t], [n] -> a scalar."""
        learnt = labels != IGNORED
        local = labels - tp.slot * logits.shape[-1] if tp.slot else labels
        column = local.clamp(0, logits.shape[-1] - 1)
        inside = column == local  # also of no label that is IGNORED
        column = column.unsqueeze(-1)
        top = logits.amax(-1).float()  # exact in any precision
        if tp.size > 1:
            tp.all_reduce_(top, "max")
        sums = top.new_empty(2, len(top))  # of exponentials; the target's logit
        for some in _tokens(logits):
            below = _below_zero(logits[some], top[some])
            picked = below.gather(-1, column[some]).squeeze(-1)
            sums[1, some] = torch.where(inside[some], picked, 0.0)  # else maybe minus infinity
            torch.sum(below.exp_(), -1, out=sums[0, some])
            del below  # before the next ones
        if tp.size > 1:
            tp.all_reduce_(sums)
        total, target = sums
        count = learnt.sum().clamp(min=1)
        ctx.save_for_backward(logits, column, inside, learnt, top, total, count)
        return torch.where(learnt, total.log() - target, 0.0).sum() / count

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """What is expected of each token of the vocabulary, less the one that came."""
        logits, column, inside, learnt, top, total, count = ctx.saved_tensors
        weight = torch.where(learnt, grad / count, 0.0)  # of each token
        found = torch.empty_like(logits)
        for some in _tokens(logits):
            below = _below_zero(logits[some], top[some], found[some])
            share = below.exp_().mul_((weight[some] / total[some])[:, None])
            here = torch.where(inside[some], weight[some], 0.0)
            share.scatter_add_(-1, column[some], -here[:, None])
            if found.dtype != torch.float32:
                found[some] = share
            del below, share
        return found, None, None


def _below_zero(
    logits: torch.Tensor, top: torch.Tensor, room: torch.Tensor | None = None
) -> torch.Tensor:
    """Logits in fp32, less the largest one of each token; in `room` if that is fp32 itself."""
    if logits.dtype == torch.float32:
        return torch.sub(logits, top[:, None], out=room)
    return logits.float().sub_(top[:, None])


def _tokens(logits: torch.Tensor) -> Iterator[slice]:
    """The tokens of [n, V / t] in order, so many at a time that few logits are in fp32."""
    most = HOST_AT_ONCE if logits.is_cpu else DEVICE_AT_ONCE
    size = max(1, most // logits.shape[-1])
    return (slice(first, first + size) for first in range(0, len(logits), size))
