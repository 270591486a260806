"""Cases that together are all plans: by how many pipelines there are, and how long they sum.

Invariant: every plan is in one regime of every split.
Source: design, section 2 ("The bound").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

FEWEST = (1, 2, 3, 5, 9)  # pipelines at which a regime begins
SUMS_FROM, SUMS_TO = 0.004, 0.5  # of an iteration: ends of the cells of gradient sums
SUMS_GRID = 1.08  # ratio of the ends of such a cell, if it is not smaller than the first


@dataclass(frozen=True, slots=True)
class Regime:
    """Plans with so many pipelines whose longest gradient sum is between two times.

    Attributes:
        fewest: pipelines.
        most: pipelines; infinite: no limit.
        sums_s: ascending; the longest sum is between the first and the last of these.
    """

    fewest: int
    most: float
    sums_s: tuple[float, ...] = (0.0, math.inf)

    def halves(self) -> tuple[Regime, ...]:
        """The same plans as two regimes; none if the sum cannot be told more exactly."""
        if len(self.sums_s) < 3:
            return ()
        middle = len(self.sums_s) // 2
        low, high = self.sums_s[: middle + 1], self.sums_s[middle:]
        return (replace(self, sums_s=low), replace(self, sums_s=high))


def regimes(iteration_s: float, *, sums_count: bool) -> tuple[Regime, ...]:
    """All plans, by their number of pipelines.

    Args:
        iteration_s: of any plan; cells of sums are shares of it.
        sums_count: whether gradient sums are known to take time.
    """
    if not sums_count:
        return (Regime(1, math.inf),)
    ends = [0.0]
    end_s = SUMS_FROM * iteration_s
    while end_s < SUMS_TO * iteration_s:
        ends.append(end_s)
        end_s += max(end_s * (SUMS_GRID - 1), SUMS_FROM * iteration_s)
    cells = (*ends, math.inf)
    most = (*(float(number - 1) for number in FEWEST[1:]), math.inf)
    return tuple(
        Regime(low, high, cells if low > 1 else (0.0, math.inf))
        for low, high in zip(FEWEST, most, strict=True)
    )
