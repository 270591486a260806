"""What lines of search beside the first one have found: they leave it, and the first one takes it.

Invariant: nobody reads plans that somebody else is writing.
Source: a portfolio of randomised searches; lines that do not know of each other look elsewhere.
"""

from __future__ import annotations

from copy import deepcopy
from threading import Lock

from planner.estimator.elites import Elites
from planner.search.kernel_search import KernelSearch


class Exchange:
    """The last plans of every other line."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._lock = Lock()
        self._left: dict[int, Elites] = {}
        self._priced: dict[int, int] = {}

    def leave(self, number: int, kernel: KernelSearch) -> None:
        """Leave a copy of the best plans of a line."""
        copied = deepcopy(kernel.elites)
        with self._lock:
            self._left[number] = copied
            self._priced[number] = kernel.evaluations

    def take(self, kernel: KernelSearch) -> int:
        """Take what was left since it was taken last; returns how many plans all have priced."""
        with self._lock:
            left, self._left = self._left, {}
            priced = sum(self._priced.values())
        for elites in left.values():
            kernel.take(elites, 0)
        return priced
