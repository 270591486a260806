"""Which corpus gives the sample at a position of a blend, and which of its samples that is.

The corpora are the leaves of a binary tree.  At each branch the left side gets the floor of its
exact share of the positions so far, the right side the rest, so a corpus is within one sample a
level of its exact share at every position, and its samples come in their own order, none skipped
and none twice.  Integers only: the same on every machine; O(log corpora) time, no table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


class Blend:
    """A mix of corpora with weights, which are exact: 0.1 is a tenth."""

    def __init__(self, weights: Sequence[float]) -> None:
        """`weights` are above 0, of at least one corpus; only their ratios count."""
        exact = [Fraction(str(weight)) for weight in weights]
        unit = math.lcm(*(weight.denominator for weight in exact))
        self._sums = [0]
        for weight in exact:
            self._sums.append(self._sums[-1] + int(weight * unit))

    def place(self, position: int) -> tuple[int, int]:
        """(corpus, its how manieth sample) at a position, both from 0."""
        low, high = 0, len(self._sums) - 1
        while high - low > 1:
            middle, share = self._branch(low, high)
            before = math.floor(position * share)
            if math.floor((position + 1) * share) > before:
                position, high = before, middle
            else:
                position, low = position - before, middle
        return low, position

    def count(self, corpus: int, positions: int) -> int:
        """How many of the first `positions` samples a corpus gives."""
        low, high = 0, len(self._sums) - 1
        while high - low > 1:
            middle, share = self._branch(low, high)
            left = math.floor(positions * share)
            if corpus < middle:
                positions, high = left, middle
            else:
                positions, low = positions - left, middle
        return positions

    def _branch(self, low: int, high: int) -> tuple[int, Fraction]:
        """Where corpora low to high are halved, and the share of the left half."""
        middle = (low + high) // 2
        sums = self._sums
        return middle, Fraction(sums[middle] - sums[low], sums[high] - sums[low])
