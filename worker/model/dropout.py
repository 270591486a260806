"""Dropout whose mask is a function of (seed, tensor name, sample), never of rank or plan.

Every number that may be dropped has an index within its sample, and a hash of both decides: any cut
of the numbers, any micro-batch and any device drops the same ones.  A sample's id counts samples
from the first step on, so it says the step too.
Source: counter-based random numbers; the mixing function is Chris Wellons' `lowbias32`.
"""

from __future__ import annotations

import hashlib

import torch

from worker.device.device import Device
from worker.model.forward_context import ForwardContext

_WORD = 0xFFFFFFFF
_SHIFTS = ((16, 0x7FEB352D), (15, 0x846CA68B))


def keep_mask(
    seed: int,
    samples: range,
    name: str,
    rate: float,
    first: int,
    count: int,
    device: Device,
) -> torch.Tensor:
    """Which numbers are kept: bool [samples, count].

    Args:
        seed: of the job.
        samples: ids of them.
        name: of the place in the model.
        rate: share that is dropped.
        first: index within its sample of the first number.
        count: of them.
        device: to compute on.
    """
    keys = [_key(seed, name, sample) for sample in samples]
    low, high = device.put(torch.tensor(keys, dtype=torch.int64)).T[..., None]
    index = torch.arange(first, first + count, dtype=torch.int64, device=device.torch_device)
    return _mix(_mix((index + low) & _WORD) ^ high) >= int(rate * (_WORD + 1))


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


def _key(seed: int, name: str, sample: int) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}/{name}/{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big")


def _mix(x: torch.Tensor) -> torch.Tensor:
    """A hash of 32-bit words, held in 64 bits."""
    for shift, factor in _SHIFTS:
        x = ((x ^ (x >> shift)) * factor) & _WORD
    return x ^ (x >> 16)
