"""The choice of a token's experts, and the loss that keeps the experts equally busy.

Invariant: the choice is a function of the logits alone.  Of equal scores the expert with the lower
number is chosen, so no plan and no kernel decides it.
Source: the papers of Mixtral, Qwen3, DeepSeek-V2 and -V3; Fedus et al., "Switch transformers", for
the loss.  Each sample has its own, as in DeepSeek-V2, so it does not depend on how a batch is cut.

Legend: T tokens, E experts, k experts of a token, S tokens of a sample.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from planner.model.experts import Routing

_LEAST_SUM = 1e-20  # added to a sum of scores, all of which may be 0


class Routes(NamedTuple):
    """The experts that tokens visit.

    Attributes:
        chosen: numbers of the experts, best first, int64 [T, k].
        weights: what each of them counts for, fp32 [T, k].
        scores: of all experts, over their sum, fp32 [T, E].
    """

    chosen: torch.Tensor
    weights: torch.Tensor
    scores: torch.Tensor


def route(
    logits: torch.Tensor, routing: Routing, per_token: int, bias: torch.Tensor | None = None
) -> Routes:
    """The routes of tokens.

    Args:
        logits: of all experts, fp32 [T, E].
        routing: how they are chosen.
        per_token: k.
        bias: added to scores where experts are chosen, and nowhere else, fp32 [E].
    """
    is_sigmoid = routing.score == "sigmoid"
    scores = logits.sigmoid() if is_sigmoid else logits.softmax(-1)
    worth = scores.detach() if bias is None else scores.detach() + bias.detach()
    if routing.groups > 1:
        worth = _within_groups(worth, routing)
    chosen = _best(worth, per_token)
    weights = scores.gather(1, chosen)
    if routing.renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + _LEAST_SUM)
    weights = weights if routing.scale == 1 else weights * routing.scale
    shares = scores / (scores.sum(-1, keepdim=True) + _LEAST_SUM) if is_sigmoid else scores
    return Routes(chosen, weights, shares)


def _best(worth: torch.Tensor, count: int) -> torch.Tensor:
    """Where the largest numbers of each row are; of equal ones the first."""
    _, order = worth.sort(dim=-1, descending=True, stable=True)
    return order[:, :count].contiguous()


def _within_groups(worth: torch.Tensor, routing: Routing) -> torch.Tensor:
    """The same, and minus infinity for experts outside the groups that are kept."""
    by_group = worth.view(len(worth), routing.groups, -1)
    ordered = by_group.sort(dim=-1, descending=True).values
    of_group = ordered[..., 0] if routing.group_score == "best" else ordered[..., :2].sum(-1)
    kept = torch.zeros_like(of_group, dtype=torch.bool)
    kept.scatter_(1, _best(of_group, routing.groups_kept), value=True)
    found: torch.Tensor = by_group.masked_fill(~kept[..., None], float("-inf")).flatten(1)
    return found


def with_visits(weights: torch.Tensor, chosen: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The weights as they are; the backward pass gives the visits of each expert to the bias.

    They stand where its gradient would, so they are summed and kept like gradients.  A pass that is
    computed again counts once, and an evaluation does not count.

    Args:
        weights: of the routes, [T, k].
        chosen: their experts, [T, k].
        bias: of the experts, fp32 [E].
    """
    result = _WithVisits.apply(weights, chosen, bias)
    assert isinstance(result, torch.Tensor)
    return result


class _WithVisits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: torch.Tensor, chosen: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(chosen, bias)
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor]:
        chosen, bias = ctx.saved_tensors
        flat, visits = chosen.flatten(), torch.zeros_like(bias)
        visits.scatter_add_(0, flat, torch.ones_like(flat, dtype=visits.dtype))
        return grad, None, visits


def auxiliary_loss(routes: Routes, samples: int, *, has_bias: bool = False) -> torch.Tensor:
    """The sum over the samples of E x sum of f_e P_e over the experts.

    f_e is how many of a sample's k S visits go to an expert, over S, and has no gradient; P_e is
    the mean score of the expert.  Where experts have a bias, the k best scores of a token count
    instead of its visits (DeepSeek-V3, equation 18): the bias and the groups change no f_e.
    """
    tokens, experts = routes.scores.shape
    length = tokens // samples
    visits = torch.zeros(samples, experts, device=routes.scores.device)
    per_token = routes.chosen.shape[1]
    counted = _best(routes.scores.detach(), per_token) if has_bias else routes.chosen
    chosen = counted.view(samples, -1)
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
