"""Attention of some heads: causal, within a window and a document, with dropout of probabilities.

Documents are computed one by one, as they would be alone: that takes time and memory by the squares
of their lengths, not by that of the row, and no mask is kept.  Dropout needs all scores at once.

Legend: b micro-batch, S sequence, d width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as functional

from worker.model.forward_context import Documents

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
    documents: Documents | None = None,
    drop: Drop | None = None,
) -> torch.Tensor:
    """[b, heads, S, d] of queries; keys and values may have fewer heads, which divide them.

    Args:
        q: queries.
        k: keys.
        v: values.
        scale: of the scores.
        window: how many tokens back, itself included, a token sees; 0: all.
        documents: that no token sees beyond; None: a row is one.
        drop: dropout of the probabilities [b, heads, S, S].
    """
    if documents is not None and len(documents.lengths) == len(q):
        documents = None  # each row is one
    if drop is None and documents is not None:
        return _apart(q, k, v, scale, window, documents.lengths)
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
    seen = visible(length, window, q.device)
    if documents is not None:
        seen = seen & _same_document(documents.positions)
    scores = scores.masked_fill(~seen, float("-inf"))
    return (drop(scores.softmax(-1)) @ v.float()).to(v.dtype)


def _apart(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    window: int,
    documents: Sequence[int],
) -> torch.Tensor:
    """Attention of each document by itself; as `split`, so that a gradient is copied once."""
    runs = (torch.split(t.transpose(1, 2).flatten(0, 1), list(documents)) for t in (q, k, v))
    found = [
        attend(*(one.transpose(0, 1)[None] for one in own), scale=scale, window=window)[0]
        for own in zip(*runs, strict=True)
    ]
    together = torch.cat([one.transpose(0, 1) for one in found])  # [b * S, heads, d]
    return together.view(len(q), -1, *together.shape[1:]).transpose(1, 2)


def _same_document(positions: torch.Tensor) -> torch.Tensor:
    """Whether two tokens of a row are of one document, bool [b, 1, S, S]; it begins at place 0."""
    of = (positions == 0).cumsum(-1)
    return (of[:, :, None] == of[:, None, :])[:, None]
