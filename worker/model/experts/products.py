"""The products of a stack of experts, each with its own rows.

Invariant: a row's result has the bits that its expert's own product gives, however many experts are
computed together.  So rows are cut between experts and never within one: a gradient of an expert's
weights is one product over all its rows.
Source: the grouped products of torch, which take what they can; a loop takes the rest.

Legend: R rows, E experts, i and o widths of a row before and after, h hidden, F width of an expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch.nn import functional

from worker.model.recompute import computed_again

_ALIGNED_BYTES = 16  # a row of either side must be a multiple of these
_GROUPED = (torch.float32, torch.bfloat16, torch.float16)


class Stack(NamedTuple):
    """Experts and what they compute.

    Attributes:
        gate, up: [E, F, h].
        down: [E, h, F].
        activate: of the gate's results.
    """

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    activate: Callable[[torch.Tensor], torch.Tensor]

    def of_all(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """[R, h]: what the experts give for rows [R, h]; `ends` as in `grouped`."""
        wide = self.activate(grouped(rows, self.gate, ends)) * grouped(rows, self.up, ends)
        return grouped(wide, self.down, ends)

    def bounded(
        self, rows: torch.Tensor, ends: torch.Tensor, sizes: Sequence[int], most: float
    ) -> torch.Tensor:
        """The same with the same bits; the backward pass finds results of width F for few rows.

        The first experts keep theirs, for at most `most` rows.  Those of each further expert are
        computed again, one expert after the other.

        Args:
            rows: expert by expert.
            ends: where the rows of each expert end, int32 [E].
            sizes: how many rows each expert has, which the host knows.
            most: rows.
        """
        if sum(sizes) <= most:
            return self.of_all(rows, ends)
        first = sum(end <= most for end in accumulate(sizes))
        kept = sum(sizes[:first])
        one_by_one = [1] * (len(sizes) - first)
        weights = [torch.split(one, [first, *one_by_one]) for one in self[:3]]
        (gate, up, down), *others = zip(*weights, strict=True)
        stack = Stack(gate, up, down, self.activate)
        found = [stack.of_all(rows[:kept], ends[:first])] if kept else []
        start = kept
        for expert, own in enumerate(others, first):
            stop = start + sizes[expert]
            if stop > start:
                again = Stack(own[0], own[1], own[2], self.activate).of_all
                found.append(computed_again(again, rows[start:stop], ends[expert, None] - start))
            start = stop
        return torch.cat(found)


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
