"""What lines of search beside the first one have found: they leave it, and the first one takes it.

Invariant: nobody reads plans that somebody else is writing.
Source: a portfolio of randomised searches; lines that do not know of each other look elsewhere.
"""

from __future__ import annotations

from copy import deepcopy
from threading import Lock

from planner.kernel.elites import Elites
from planner.kernel_search import KernelSearch


class Exchange:
    """The last plans of every other line."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._lock = Lock()
        self._left: dict[int, tuple[Elites, int]] = {}

    def leave(self, number: int, kernel: KernelSearch) -> None:
        """Leave a copy of the best plans of a line."""
        copied = deepcopy(kernel.elites)
        with self._lock:
            self._left[number] = copied, kernel.evaluations

    def take(self, kernel: KernelSearch) -> int:
        """Take the plans of all lines; returns how many they have priced."""
        with self._lock:
            left = tuple(self._left.values())
        for elites, _ in left:
            kernel.take(elites, 0)
        return sum(evaluations for _, evaluations in left)
