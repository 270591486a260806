"""Worth of GPUs of each type to a job, in samples per second.

The curves are the planner's: throughput by the number of GPUs of one type alone.  Templates of
different types train side by side, so the throughputs of the types add up.
Invariant: more GPUs are never worth less.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.cluster.composition import Composition, Node

Curve = tuple[tuple[int, float], ...]  # (GPUs, samples per second), GPUs ascending
NodeSizes = tuple[tuple[str, tuple[int, ...]], ...]  # (type, GPUs of each of its nodes), sorted
_EXACT = 64  # GPUs up to which each number of them is tried; beyond, so many steps are


@dataclass(frozen=True, slots=True)
class Worth:
    """A curve by GPU type, sorted; a type without a curve is worth nothing."""

    curves: tuple[tuple[str, Curve], ...]

    def alone(self, gpu_type: str, gpus: int) -> float:
        """Samples per second of so many GPUs of one type."""
        return _at(dict(self.curves).get(gpu_type, ()), gpus)

    def at_speeds(self, speeds: Mapping[str, float]) -> Worth:
        """The same where types compute at these speeds of their profiles; 1 where not given."""
        if not speeds:
            return self
        return Worth(
            tuple(
                (name, tuple((gpus, rate * speeds.get(name, 1.0)) for gpus, rate in curve))
                for name, curve in self.curves
            )
        )

    def of(self, counts: Mapping[str, int], most: int) -> float:
        """Samples per second of the best choice among these GPUs.

        Args:
            counts: GPUs by type.
            most: GPUs that may be used.
        """
        used = [(curve, counts.get(gpu_type, 0)) for gpu_type, curve in self.curves]
        total = sum(gpus for _, gpus in used)
        if total <= most:
            return sum(_at(curve, gpus) for curve, gpus in used)
        # A knapsack over the types; in steps where there are many GPUs.
        step = -(-most // _EXACT)
        slots = most // step
        best = np.zeros(slots + 1)
        for curve, gpus in used:
            row = np.array([_at(curve, min(i * step, gpus)) for i in range(slots + 1)])
            best = np.array([np.max(best[: i + 1] + row[i::-1]) for i in range(slots + 1)])
        return float(best[-1])


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
