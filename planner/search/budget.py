"""Budget of a search: seconds of a clock, and plans that are costed.

Invariant: seconds that loading took do not count.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from planner.request import PlanRequest

Clock = Callable[[], float]


def never() -> bool:
    """Nobody interrupts."""
    return False


class Budget:
    """The budget of one search, which begins with it.

    Attributes:
        now_s: reads the clock.
        interrupted: whether the user wants the best plan so far, now.
        counts_plans: whether plans end the search, so that it is the same every time; one whose
            only limit is seconds goes as far as it gets.
        most_plans: that may be priced; infinite without a limit.
    """

    def __init__(
        self, request: PlanRequest, clock: Clock, interrupted: Callable[[], bool] = never
    ) -> None:
        """Begin now."""
        self.now_s, self.interrupted = clock, interrupted
        self._seconds = request.most_seconds
        self.counts_plans = request.most_evaluations < sys.maxsize
        self.most_plans = float(request.most_evaluations) if self.counts_plans else math.inf
        self._began_s = clock()
        self._left_out_s = 0.0

    def exclude(self, seconds: float) -> None:
        """Seconds that do not count."""
        self._left_out_s += seconds

    @property
    def passed_s(self) -> float:
        """Seconds of the search so far."""
        return self.now_s() - self._began_s - self._left_out_s

    @property
    def left_s(self) -> float:
        """Seconds that are left; below 0 once they are over."""
        return self._seconds - self.passed_s
