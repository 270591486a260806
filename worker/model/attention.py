"""Attention of some heads: causal, within a window, with dropout of its probabilities.

Legend: b micro-batch, S sequence, d width of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as functional

Drop = Callable[[torch.Tensor], torch.Tensor]


def visible(length: int, window: int, device: torch.device) -> torch.Tensor:
    """Which tokens each one sees, bool [S, S]: `window` back, itself included; 0: all."""
    seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return seen.triu(1 - window) if window else seen


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    drop: Drop | None = None,
) -> torch.Tensor:
    """[b, heads, S, d] of queries; keys and values may have fewer heads, which divide them.

    Args:
        q: queries.
        k: keys.
        v: values.
        scale: of the scores.
        window: how many tokens back, itself included, a token sees; 0: all.
        drop: dropout of the probabilities [b, heads, S, S].
    """
    length = q.shape[-2]
    shared = q.shape[1] != k.shape[1]
    if drop is None:
        mask = visible(length, window, q.device) if 0 < window < length else None
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=shared
        )
    if shared:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = q.float() @ k.transpose(-1, -2).float() * scale
    scores = scores.masked_fill(~visible(length, window, q.device), float("-inf"))
    return (drop(scores.softmax(-1)) @ v.float()).to(v.dtype)
