"""Worth of GPUs of each type to a job, in samples per second.

The curves are the planner's: throughput by the number of GPUs of one type alone.  Templates of
different types train side by side, so the throughputs of the types add up.  A type whose memory is
too small alone brings throughput in a plan with others: the mixes say how much.  Of few GPUs all
mixes are known, and nothing is added up.
Invariant: more GPUs are never worth less.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cluster.composition import Composition, Node

Curve = tuple[tuple[int, float], ...]  # (GPUs, samples per second), GPUs ascending
Mix = tuple[tuple[int, ...], float]  # (GPUs by type, as the curves are sorted; samples/s)
NodeSizes = tuple[tuple[str, tuple[int, ...]], ...]  # (type, GPUs of each of its nodes), sorted
_LEAST_GAIN = 1.01  # of a mix over its parts; less is the error of short searches
_EXACT = 64  # GPUs up to which each number of them is tried; beyond, so many steps are


@dataclass(frozen=True, slots=True)
class Worth:
    """Throughput by GPU type, and of types together.

    Attributes:
        curves: by GPU type, sorted; a type without a curve is worth nothing alone.
        mixed: GPUs of several types that bring more in one plan than alone.
        is_complete: `mixed` has all mixes with a plan, whether they bring more or less.
    """

    curves: tuple[tuple[str, Curve], ...]
    mixed: tuple[Mix, ...] = ()
    is_complete: bool = False

    @staticmethod
    def learnt(
        curves: Mapping[str, Iterable[tuple[int, float]]],
        mixed: Iterable[Mix],
        is_complete: bool = False,
    ) -> Worth:
        """From throughputs that were searched; of some mixes those are kept that bring something.

        Args:
            curves: by GPU type.
            mixed: in the order of the sorted types, fewest GPUs first.
            is_complete: whether these are all mixes.
        """
        rows = tuple(
            (name, tuple((gpus, rate) for gpus, rate in curve))
            for name, curve in sorted(curves.items())
        )
        if is_complete:
            return Worth(rows, tuple((tuple(mix), rate) for mix, rate in mixed), is_complete=True)
        found = Worth(rows)
        for mix, rate in mixed:
            counts = {name: gpus for (name, _), gpus in zip(rows, mix, strict=True)}
            if rate > _LEAST_GAIN * found.of(counts, sum(mix)):
                found = Worth(rows, (*found.mixed, (tuple(mix), rate)))
        return found

    def alone(self, gpu_type: str, gpus: int) -> float:
        """Samples per second of so many GPUs of one type."""
        return _at(dict(self.curves).get(gpu_type, ()), gpus)

    def at_speeds(self, speeds: Mapping[str, float]) -> Worth:
        """The same where types compute at these speeds of their profiles; 1 where not given.

        A mix is as fast as the slowest of its types lets it be.
        """
        if not speeds:
            return self
        by_type = [speeds.get(name, 1.0) for name, _ in self.curves]
        return Worth(
            tuple(
                (name, tuple((gpus, rate * speed) for gpus, rate in curve))
                for (name, curve), speed in zip(self.curves, by_type, strict=True)
            ),
            tuple(
                (row, rate * min(speed for speed, gpus in zip(by_type, row, strict=True) if gpus))
                for row, rate in self.mixed
            ),
            self.is_complete,
        )

    def of(self, counts: Mapping[str, int], most: int) -> float:
        """Samples per second of the best choice among these GPUs.

        Args:
            counts: GPUs by type.
            most: GPUs that may be used.
        """
        there = [counts.get(gpu_type, 0) for gpu_type, _ in self.curves]
        if self.is_complete:
            return self._best_known(there, most)
        if sum(there) > most:
            return self._within(there, most)
        best = self._sum(there)
        for mix, rate in self.mixed:
            if all(map(operator.le, mix, there)):
                best = max(best, rate + self._sum(map(operator.sub, there, mix)))
        return best

    def _best_known(self, there: Sequence[int], most: int) -> float:
        """The best of the types alone and of the mixes."""
        pairs = zip(self.curves, there, strict=True)
        best = max((_at(curve, min(gpus, most)) for (_, curve), gpus in pairs), default=0.0)
        for mix, rate in self.mixed:
            if rate > best and sum(mix) <= most and all(map(operator.le, mix, there)):
                best = rate
        return best

    def _sum(self, there: Iterable[int]) -> float:
        """With all of these GPUs, each type alone."""
        return sum(_at(curve, n) for (_, curve), n in zip(self.curves, there, strict=True) if n)

    def _within(self, there: Sequence[int], most: int) -> float:
        """The best choice of so many GPUs among more, in steps where there are many."""
        step = -(-most // _EXACT) or 1
        by_slots = _together(self._rows(there, most // step, step))
        best = by_slots[-1]
        # No mix brings more than with all these GPUs beside it.
        bounds = sorted(
            (rate + by_slots[(most - sum(mix)) // step], mix, rate)
            for mix, rate in self.mixed
            if sum(mix) <= most and all(map(operator.le, mix, there))
        )
        for bound, mix, rate in reversed(bounds):
            if bound <= best:
                break
            rest = tuple(map(operator.sub, there, mix))
            *rows, last = self._rows(rest, (most - sum(mix)) // step, step)
            best = max(best, rate + (_together(rows) + last[::-1]).max())
        return float(best)

    def _rows(self, there: Sequence[int], slots: int, step: int) -> list[NDArray[np.float64]]:
        """Of each type, what 0, 1 ... `slots` times `step` of these GPUs bring alone."""
        gpus = np.arange(slots + 1) * step
        pairs = zip(self.curves, there, strict=True)
        return [_rates(curve, np.minimum(gpus, most)) for (_, curve), most in pairs]


def nodes_of(sizes: NodeSizes) -> Composition:
    """Nodes of these types and sizes."""
    return Composition(
        tuple(
            Node(name=f"{gpu_type}-{index}", gpu_type=gpu_type, gpus=gpus)
            for gpu_type, row in sizes
            for index, gpus in enumerate(row)
            if gpus
        )
    )


def _at(curve: Curve, gpus: int) -> float:
    """The curve at a number of GPUs: straight between its points, level after the last."""
    index = bisect_right(curve, gpus, key=lambda point: point[0])
    if index == 0:
        return 0.0
    left, low = curve[index - 1]
    if index == len(curve):
        return low
    right, high = curve[index]
    return low + (high - low) * (gpus - left) / (right - left)


def _together(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The best choice of 0, 1 ... slots among several types, from the rows of each."""
    best = rows[0]
    for row in rows[1:]:
        gpus = np.arange(len(row))
        left = gpus[:, None] - gpus  # [slots in all, slots of one type]
        best = np.where(left >= 0, best[left] + row, 0.0).max(axis=1)
    return best


def _rates(curve: Curve, gpus: NDArray[np.int64]) -> NDArray[np.float64]:
    """The curve at each of several numbers of GPUs."""
    if not curve:
        return np.zeros(len(gpus))
    points, rates = zip(*curve, strict=True)
    found: NDArray[np.float64] = np.interp(gpus, points, rates, left=0.0)
    return found
