"""Attention of some heads: causal, within a window and a document, with dropout of probabilities.

No scores of all pairs of tokens are kept.  Documents are computed one by one, as they would be
alone: that takes time and memory by the squares of their lengths, not by that of the row.  With a
window shorter than the row, and with dropout, some queries are computed at a time against the keys
that they see, in the backward pass again.

Legend: b micro-batch, S sequence, d width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as functional

from worker.model.forward_context import Documents

Drop = Callable[[torch.Tensor, range, range], torch.Tensor]
# Of some queries [b, heads, n, d], and of the keys and values that any of them sees; with the
# places of both in their rows.
Band = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, range, range], torch.Tensor]
QUERIES = 256  # at a time, with a window or dropout


def visible(queries: int, keys: int, window: int, device: torch.device) -> torch.Tensor:
    """Which keys the last tokens see, bool [queries, keys]: `window` back, itself too; 0: all.

    The last query and the last key are of one token.
    """
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
        drop: dropout of the probabilities of some queries and keys.
    """
    if documents is not None and len(documents.lengths) == len(q):
        documents = None  # each row is one
    if drop is not None:
        return _in_bands(q, k, v, window, _dropped(scale, window, documents, drop))
    if documents is not None:
        return _apart(q, k, v, scale, window, documents.lengths)
    length = q.shape[-2]
    if not 0 < window < length:
        return _fused(q, k, v, scale, None)
    if length <= QUERIES:
        return _fused(q, k, v, scale, visible(length, length, window, q.device))

    def windowed(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: range, seen: range
    ) -> torch.Tensor:
        return _fused(q, k, v, scale, visible(len(rows), len(seen), window, q.device))

    return _in_bands(q, k, v, window, windowed)


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


def _in_bands(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, band: Band
) -> torch.Tensor:
    found = _InBands.apply(q, k, v, window, band)
    assert isinstance(found, torch.Tensor)
    return found


class _InBands(torch.autograd.Function):
    """Some queries at a time against the keys that they see; keeps nothing but its inputs."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, band: Band
    ) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.window, ctx.band = window, band
        found = torch.empty_like(q)
        for rows, seen in _bands(q.shape[2], window):
            found[:, :, _cut(rows)] = band(*_of_band(q, k, v, rows, seen), rows, seen)
        return found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Computes each band again; in fp32 its keys' gradients add up over the bands."""
        q, k, v = ctx.saved_tensors
        of_q = torch.empty_like(q)
        of_k, of_v = (torch.zeros_like(t, dtype=torch.float32) for t in (k, v))
        for rows, seen in _bands(q.shape[2], ctx.window):
            inputs = [t.detach().requires_grad_() for t in _of_band(q, k, v, rows, seen)]
            with torch.enable_grad():
                found = ctx.band(*inputs, rows, seen)
            of_rows, *of_seen = torch.autograd.grad(found, inputs, grad[:, :, _cut(rows)])
            of_q[:, :, _cut(rows)] = of_rows
            for total, part in zip((of_k, of_v), of_seen, strict=True):
                total[:, :, _cut(seen)].add_(part)
        return of_q, of_k.to(k.dtype), of_v.to(v.dtype), None, None


def _bands(length: int, window: int) -> Iterator[tuple[range, range]]:
    """(queries, the keys that any of them sees), in order."""
    for first in range(0, length, QUERIES):
        stop = min(first + QUERIES, length)
        yield range(first, stop), range(max(0, first + 1 - window) if window else 0, stop)


def _cut(places: range) -> slice:
    return slice(places.start, places.stop)


def _of_band(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: range, seen: range
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return q[:, :, _cut(rows)], k[:, :, _cut(seen)], v[:, :, _cut(seen)]


def _dropped(scale: float, window: int, documents: Documents | None, drop: Drop) -> Band:
    """By all scores of a band, whose dropout is a function of their place."""

    def band(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: range, seen: range
    ) -> torch.Tensor:
        shares = q.shape[1] // k.shape[1]
        if shares > 1:
            k, v = (
                t.repeat_interleave(shares, dim=1, output_size=q.shape[1]) for t in (k, v)
            )  # else the host waits for the size
        scores = q.float() @ k.transpose(-1, -2).float() * scale
        mask = visible(len(rows), len(seen), window, q.device)
        if documents is not None:
            mask = mask & _same_document(documents.positions, rows, seen)
        scores = scores.masked_fill(~mask, float("-inf"))
        return (drop(scores.softmax(-1), rows, seen) @ v.float()).to(v.dtype)

    return band


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


def _same_document(positions: torch.Tensor, rows: range, seen: range) -> torch.Tensor:
    """Whether two tokens are of one document, bool [b, 1, rows, seen]; it begins at place 0."""
    of = (positions == 0).cumsum(-1)
    return (of[:, _cut(rows), None] == of[:, None, _cut(seen)])[:, None]
