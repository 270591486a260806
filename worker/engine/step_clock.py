"""Where the time of a step goes on one rank: forward, backward, and waiting for neighbours.

Invariant: parts do not overlap; what is in none of them is the sum of gradients, the update, or the
time of Python and DeepSpeed.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from typing import Literal

Part = Literal["forward", "backward", "waiting"]
PARTS: tuple[Part, ...] = ("forward", "backward", "waiting")


class StepClock:
    """Seconds of each part since they were last taken."""

    def __init__(self) -> None:
        self._seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)

    @contextlib.contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Count what is inside; an emulated device's waiting for its time counts as its work."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - start_s

    def take(self) -> tuple[float, ...]:
        """Seconds in the order of PARTS; they start at 0 again."""
        taken = tuple(self._seconds[name] for name in PARTS)
        self._seconds = dict.fromkeys(PARTS, 0.0)
        return taken


def computing_s(parts_s: tuple[float, ...]) -> float:
    """Seconds of forward and backward passes; what a rank waited for is none of its own work."""
    by_part = dict(zip(PARTS, parts_s, strict=True))
    return by_part["forward"] + by_part["backward"]


def peak_memory_bytes() -> int:
    """The most that this process has held so far, Python and torch with it."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
