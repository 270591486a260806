"""Dropout whose mask is a function of (seed, tensor name, sample), never of rank or plan.

Every number that may be dropped has an index within its sample, and a hash of both decides: any cut
of the numbers, any micro-batch and any device drops the same ones.  A sample's id counts samples
from the first step on, so it says the step too.
Words are held as int32, whose sums and products wrap as those of unsigned words do, and are hashed
in place, so many at a time that they stay in a processor's cache.
Source: counter-based random numbers; the mixing function is Chris Wellons' `lowbias32`.
"""

from __future__ import annotations

import hashlib

import torch

from worker.device.device import Device
from worker.model.forward_context import ForwardContext

_BITS, _SIGN = 32, 1 << 31
_SHIFTS = ((16, 0x7FEB352D), (15, 0x846CA68B))
_CPU_WORDS = 1 << 17  # hashed at once, which fits a processor's cache
_GPU_WORDS = 1 << 24


def keep_mask(
    seed: int,
    samples: range,
    name: str,
    rate: float,
    first: int,
    count: int,
    device: Device,
) -> torch.Tensor:
    """Which numbers of one run are kept: bool [samples, count].

    Args:
        seed: of the job.
        samples: ids of them.
        name: of the place in the model.
        rate: share that is dropped.
        first: index within its sample of the first number.
        count: of them.
        device: to compute on.
    """
    start = torch.arange(first, first + 1, device=device.torch_device)
    hashed = _Hash(seed, samples, name, rate, device)
    return hashed.mask(start, range(count), torch.bool)[:, 0]


class _Hash:
    """Decides by (seed, place, sample) and index, so many at once as fit in the cache."""

    def __init__(self, seed: int, samples: range, name: str, rate: float, device: Device) -> None:
        keys = [[_signed(word) for word in _key(seed, name, sample)] for sample in samples]
        self._low, self._high = device.put(torch.tensor(keys, dtype=torch.int32)).T[..., None]
        self._least = int(rate * (1 << _BITS)) - _SIGN
        words = _CPU_WORDS if device.torch_device.type == "cpu" else _GPU_WORDS
        self._most = max(1, words // len(samples))

    def mask(self, starts: torch.Tensor, run: range, dtype: torch.dtype) -> torch.Tensor:
        """Of runs from each start on, [starts]: 1 or 0, [samples, starts, run]."""
        shape, device = (len(self._low), len(starts), len(run)), starts.device
        found = torch.empty(shape, dtype=dtype, device=device)
        width = max(1, min(len(run), self._most))
        rows = max(1, self._most // width)
        for row in range(0, len(starts), rows):
            for first in range(0, len(run), width):
                numbers = run[first : first + width]
                index = starts[row : row + rows, None]
                index = index + torch.arange(numbers.start, numbers.stop, device=device)
                kept = self._keeps(index.flatten()).view(-1, *index.shape)
                found[:, row : row + rows, first : first + width] = kept
        return found

    def _keeps(self, index: torch.Tensor) -> torch.Tensor:
        """Of indices [n]: 1 or 0, int32 [samples, n]."""
        words: torch.Tensor = index.to(torch.int32) + self._low
        shifted = torch.empty_like(words)
        _mix(words, shifted)
        words ^= self._high
        _mix(words, shifted)
        words ^= -_SIGN  # so that signed words compare as unsigned ones do
        return words.ge_(self._least)


def dropped(
    x: torch.Tensor, context: ForwardContext | None, name: str, rate: float, first: int = 0
) -> torch.Tensor:
    """`x` [samples, ...] with a share of its numbers zero and the others scaled up for it.

    Args:
        x: a cut of all numbers of the place; those of a sample are one run.
        context: whose seed and samples decide; without samples nothing is dropped.
        name: of the place in the model.
        rate: share that is dropped.
        first: index within its sample of the first number.
    """
    if context is None or context.samples is None or not rate:
        return x
    samples = context.samples
    mask = keep_mask(context.seed, samples, name, rate, first, x[0].numel(), context.device)
    return x * mask.view_as(x) / (1 - rate)


def dropped_scores(
    x: torch.Tensor,
    queries: range,
    keys: range,
    *,
    context: ForwardContext,
    name: str,
    rate: float,
    heads: range,
    length: int,
) -> torch.Tensor:
    """`dropped` of some probabilities of attention, [samples, heads, queries, keys].

    Args:
        x: the probabilities; all of a sample are one run, by head, query and key.
        queries: of a row's tokens, those of `x`.
        keys: likewise.
        context: whose seed and samples decide.
        name: of the place in the model.
        rate: share that is dropped.
        heads: of all heads, those of `x`.
        length: S, the tokens of a row.
    """
    assert context.samples is not None
    device = x.device
    starts = torch.arange(heads.start, heads.stop, device=device)[:, None] * length
    starts = (starts + torch.arange(queries.start, queries.stop, device=device)).flatten() * length
    hashed = _Hash(context.seed, context.samples, name, rate, context.device)
    mask = hashed.mask(starts, keys, x.dtype)
    return x * mask.view_as(x) / (1 - rate)


def _key(seed: int, name: str, sample: int) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}/{name}/{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big")


def _signed(word: int) -> int:
    return word - (1 << _BITS) if word >= _SIGN else word


def _mix(words: torch.Tensor, shifted: torch.Tensor) -> None:
    """A hash of 32-bit words in place; `shifted` is room for as many."""
    for shift, factor in _SHIFTS:
        _fold(words, shifted, shift)
        words *= _signed(factor)
    _fold(words, shifted, 16)


def _fold(words: torch.Tensor, shifted: torch.Tensor, shift: int) -> None:
    torch.bitwise_right_shift(words, shift, out=shifted)
    shifted &= (1 << (_BITS - shift)) - 1  # the sign is no more than a bit
    words ^= shifted
