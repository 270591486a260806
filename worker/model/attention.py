"""Attention of some heads: causal, within a window and a document, with dropout of probabilities.

No scores of all pairs of tokens are kept.  Documents are computed one by one, as they would be
alone: that takes time and memory by the squares of their lengths, not by that of the row.  A window
shorter than the row is computed for some queries at a time, against the keys that they see.
Dropout needs all scores at once.

Legend: b micro-batch, S sequence, d width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as functional

from worker.model.forward_context import Documents

Drop = Callable[[torch.Tensor], torch.Tensor]
QUERIES = 256  # at a time, of a row with a window


def visible(queries: int, keys: int, window: int, device: torch.device) -> torch.Tensor:
    """Which keys the last tokens see, bool [queries, keys]: `window` back, itself too; 0: all."""
    places = torch.arange(keys, device=device)
    back = places[keys - queries :, None] - places
    return (back >= 0) & (back < window) if window else back >= 0


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
    if drop is not None:
        return _dropped(q, k, v, scale, window, documents, drop)
    if documents is not None:
        return _apart(q, k, v, scale, window, documents.lengths)
    length = q.shape[-2]
    if not 0 < window < length:
        return _fused(q, k, v, scale, None)
    if length <= QUERIES:
        return _fused(q, k, v, scale, visible(length, length, window, q.device))
    found = _Windowed.apply(q, k, v, scale, window)
    assert isinstance(found, torch.Tensor)
    return found


def _fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: torch.Tensor | None
) -> torch.Tensor:
    """Torch's own attention, causal unless there is a mask.

    On a GPU its kernels for shared keys take neither masks nor fp32.
    """
    if not q.is_cpu and (mask is not None or q.dtype == torch.float32):
        return in_turn(q, k, v, scale, mask)
    return functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def in_turn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: torch.Tensor | None
) -> torch.Tensor:
    """Likewise, of the query heads that share keys one at a time, so that no key is copied.

    Torch would take its plain kernel, which copies keys for each query head and keeps all scores.
    """
    apart = q.view(len(q), k.shape[1], -1, *q.shape[2:])  # heads of keys, and who shares each
    found = [
        functional.scaled_dot_product_attention(
            one, k, v, attn_mask=mask, is_causal=mask is None, scale=scale
        )
        for one in apart.unbind(2)  # whose gradients are stacked once
    ]
    return found[0] if len(found) == 1 else torch.stack(found, 2).flatten(1, 2)


class _Windowed(torch.autograd.Function):
    """Some queries at a time against the keys in their windows; keeps nothing but its inputs."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int
    ) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.scale, ctx.window = scale, window
        found = torch.empty_like(q)
        for rows, seen, mask in _bands(q.shape[2], window, q.device):
            found[:, :, rows] = _fused(q[:, :, rows], k[:, :, seen], v[:, :, seen], scale, mask)
        return found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Computes each band again; in fp32 its keys' gradients add up over the bands."""
        q, k, v = ctx.saved_tensors
        of_q = torch.empty_like(q)
        of_k, of_v = (torch.zeros_like(t, dtype=torch.float32) for t in (k, v))
        for rows, seen, mask in _bands(q.shape[2], ctx.window, q.device):
            band = tuple(
                t.detach().requires_grad_() for t in (q[:, :, rows], k[:, :, seen], v[:, :, seen])
            )
            of_rows, *of_seen = _gradients(band, grad[:, :, rows], ctx.scale, mask)
            of_q[:, :, rows] = of_rows
            for total, part in zip((of_k, of_v), of_seen, strict=True):
                total[:, :, seen].add_(part)
        return of_q, of_k.to(k.dtype), of_v.to(v.dtype), None, None


def _gradients(
    band: tuple[torch.Tensor, ...], grad: torch.Tensor, scale: float, mask: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Of the queries, keys and values of a band."""
    q, k, v = band
    with torch.enable_grad():
        found = _fused(q, k, v, scale, mask)
    return torch.autograd.grad(found, band, grad)


def _bands(
    length: int, window: int, device: torch.device
) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """(queries, the keys that any of them sees, which of them sees which), in order."""
    whole = visible(QUERIES, QUERIES + window - 1, window, device)
    for first in range(0, length, QUERIES):
        stop, seen = min(first + QUERIES, length), max(0, first + 1 - window)
        keys = slice(window - 1 - (first - seen), window - 1 + (stop - first))
        yield slice(first, stop), slice(seen, stop), whole[: stop - first, keys]


def _dropped(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    window: int,
    documents: Documents | None,
    drop: Drop,
) -> torch.Tensor:
    """By all scores, whose dropout is a function of their place."""
    length, shares = q.shape[-2], q.shape[1] // k.shape[1]
    if shares > 1:
        k, v = (
            t.repeat_interleave(shares, dim=1, output_size=q.shape[1]) for t in (k, v)
        )  # else the host waits for the size
    scores = q.float() @ k.transpose(-1, -2).float() * scale
    seen = visible(length, length, window, q.device)
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
