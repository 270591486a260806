"""The choice of a token's experts, and the loss that keeps the experts equally busy.

Invariant: the choice is a function of the logits alone.  Of equal scores the expert with the lower
number is chosen, so no plan and no kernel decides it.
Source: the papers of Mixtral and Qwen3; Fedus et al., "Switch transformers", for the loss.  Each
sample has its own, as in DeepSeek-V2, so it does not depend on how a batch is cut.

Legend: T tokens, E experts, k experts of a token, S tokens of a sample.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from planner.model.experts import Routing


class Routes(NamedTuple):
    """The experts that tokens visit.

    Attributes:
        chosen: numbers of the experts, best first, int64 [T, k].
        weights: what each of them counts for, fp32 [T, k].
        scores: of all experts, fp32 [T, E].
    """

    chosen: torch.Tensor
    weights: torch.Tensor
    scores: torch.Tensor


def route(logits: torch.Tensor, routing: Routing, per_token: int) -> Routes:
    """The routes of tokens by their logits, fp32 [T, E]."""
    scores = logits.softmax(-1)
    _, order = scores.detach().sort(dim=-1, descending=True, stable=True)
    chosen = order[:, :per_token].contiguous()
    weights = scores.gather(1, chosen)
    if routing.renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return Routes(chosen, weights if routing.scale == 1 else weights * routing.scale, scores)


def auxiliary_loss(routes: Routes, samples: int) -> torch.Tensor:
    """The sum over the samples of E x sum of f_e P_e over the experts.

    f_e is how many of a sample's k S visits go to an expert, over S, and has no gradient; P_e is
    the mean score of the expert.
    """
    tokens, experts = routes.scores.shape
    length = tokens // samples
    visits = torch.zeros(samples, experts, device=routes.scores.device)
    chosen = routes.chosen.view(samples, -1)
    visits.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=visits.dtype))
    means = routes.scores.view(samples, length, experts).mean(1)
    loss: torch.Tensor = experts * (visits / length * means).sum()
    return loss


def with_loss(x: torch.Tensor, loss: torch.Tensor, weight: float) -> torch.Tensor:
    """`x` as it is; the backward pass goes through `loss` too, which counts for `weight`.

    So a block in the middle of a pipeline has a loss of its own.
    Source: the auxiliary loss of Megatron-Core.
    """
    result = _WithLoss.apply(x, loss, weight)
    assert isinstance(result, torch.Tensor)
    return result


class _WithLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, loss: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.weight, ctx.loss = weight, (loss.shape, loss.dtype, loss.device)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        shape, dtype, device = ctx.loss
        return grad, torch.full(shape, ctx.weight, dtype=dtype, device=device), None
