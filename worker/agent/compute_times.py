"""Computing seconds of one rank's steps, which tell how fast its device is.

Invariant: only steps of one epoch are told together, as another plan gives the rank other work; a
step that was slow once changes no median.
"""

from __future__ import annotations

import collections
import math
from statistics import median

STEPS = 16  # so many that a pause of the machine in some of them is not seen


class ComputeTimes:
    """Seconds of the newest steps of one rank."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._seconds: collections.deque[float] = collections.deque(maxlen=STEPS)

    def add(self, epoch: int, seconds: object) -> None:
        """Count a step; a rank that does not tell a time above 0 is not measured."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._seconds.clear()
        if isinstance(seconds, int | float) and math.isfinite(seconds) and seconds > 0:
            self._seconds.append(seconds)

    def median_s(self, epoch: int | None) -> float | None:
        """Of a step of that epoch; None before `STEPS` of them."""
        if epoch != self._epoch or len(self._seconds) < STEPS:
            return None
        return median(self._seconds)
