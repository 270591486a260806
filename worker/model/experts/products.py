"""The products of a stack of experts, each with its own rows.

Invariant: a row's result has the bits that its expert's own product gives, however many experts are
computed together.
Source: the grouped products of torch, which take what they can; a loop takes the rest.

Legend: R rows, E experts, i and o widths of a row before and after.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.nn import functional

_ALIGNED_BYTES = 16  # a row of either side must be a multiple of these
_GROUPED = (torch.float32, torch.bfloat16, torch.float16)


def grouped(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """[R, o]: rows [R, i] times the weight of their expert, of all [E, o, i].

    Args:
        x: rows, expert by expert.
        weight: of all experts.
        ends: where the rows of each expert end, int32 [E].
    """
    if is_grouped(x, weight):
        return functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)
    return looped(x, weight, ends)


def is_grouped(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether torch computes these products together."""
    widths = (size * x.element_size() % _ALIGNED_BYTES for size in weight.shape[1:])
    return x.dtype in _GROUPED and len(x) > 0 and not any(widths)


def looped(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The same, expert by expert; the host waits for `ends`, unless there is no row."""
    stops = ends.tolist() if len(x) else [0] * len(weight)
    sizes = [stop - start for start, stop in pairwise([0, *stops])]
    rows = torch.split(x, sizes)
    return torch.cat([functional.linear(own, of) for own, of in zip(rows, weight, strict=True)])
