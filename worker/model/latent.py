"""Queries, keys and values of latent attention, which come through projections of low rank.

Queries, and keys with values, are compressed, normalised and projected up; one rotary key is shared
by all heads.  TP cuts what is projected up, by heads.  What is compressed is computed alike on
every rank of a TP group, and is copied into the heads, so its gradient is whole.
Pairs of neighbours are rotated: the files' order.  They are taken apart first, so that halves are
rotated as in any other model; scores do not depend on that order.
Source: the papers of DeepSeek-V2 and -V3, and their code in `transformers`.

Legend: b micro-batch, S sequence, t TP degree.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as functional

from planner.model.shape import ModelShape
from worker.model.parallel import TensorParallel

NORM_EPSILON = 1e-6  # of what is compressed, whatever that of the model's other norms is
Turn = Callable[[torch.Tensor], torch.Tensor]
Weight = Callable[[str], torch.Tensor]


def heads_of(
    h: torch.Tensor, model: ModelShape, weight: Weight, tp: TensorParallel, turn: Turn
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(queries, keys, values) of the heads of this rank, [b, heads / t, S, width].

    Args:
        h: the block's input, normalised, [b, S, hidden]; no rank has cut it.
        model: with latent attention.
        weight: gives the tensor of that name of this rank.
        tp: of the stage.
        turn: rotates by position, half against half, [b, heads, S, rope].
    """
    latent = model.latent
    assert latent is not None  # it is a block of such a model
    compressed = functional.linear(h, weight("kv_down"))
    shared = compressed[..., : latent.kv_rank], compressed[..., latent.kv_rank :]
    for_queries = h
    if latent.query_rank:
        for_queries = _normalised(functional.linear(h, weight("q_down")), weight("q_norm"))
    for_keys, rotary_key, for_queries = _copied(
        [_normalised(shared[0], weight("kv_norm")), shared[1], for_queries], tp
    )
    q = functional.linear(for_queries, weight("q_up" if latent.query_rank else "q"))
    q = q.view(*q.shape[:2], -1, model.head_dim).transpose(1, 2)
    plain = model.head_dim - latent.rope
    up = functional.linear(for_keys, weight("kv_up"))
    up = up.view(*up.shape[:2], -1, plain + latent.value).transpose(1, 2)
    rotary_key = turn(apart(rotary_key[:, None])).expand(-1, q.shape[1], -1, -1)
    return (
        torch.cat([q[..., :plain], turn(apart(q[..., plain:]))], dim=-1),
        torch.cat([up[..., :plain], rotary_key], dim=-1),
        up[..., plain:],
    )


def score_scale(model: ModelShape) -> float:
    """By what products of queries and keys are multiplied."""
    if not model.arithmetic.scale_scores:
        return 1.0
    scaling = model.arithmetic.rotary.scaling
    plain: float = model.head_dim**-0.5
    return plain if model.latent is None or scaling is None else plain * scaling.score_scale


def apart(x: torch.Tensor) -> torch.Tensor:
    """Neighbours as halves: the even places of the last dimension, then the odd ones."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)


def padded(values: torch.Tensor, width: int) -> torch.Tensor:
    """Values as wide as keys, zeros behind: torch's fused attention takes no others."""
    return functional.pad(values, (0, width - values.shape[-1]))


def _copied(parts: list[torch.Tensor], tp: TensorParallel) -> list[torch.Tensor]:
    """What all heads read: one sum of its gradients over TP, in one message."""
    if tp.size == 1:
        return parts
    together = tp.copy(torch.cat(parts, dim=-1))
    return [*torch.split(together, [one.shape[-1] for one in parts], dim=-1)]


def _normalised(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, weight.shape, weight, NORM_EPSILON)
