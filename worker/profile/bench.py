"""Time a piece of work so that what else runs on the machine counts as little as it can.

Other load only ever adds to a time, so the smallest of several is the best guess; repeats go on
until a second one confirms it.  On CPU the clock counts the process's own seconds, so that seconds
in which another process has the core are no part of it.  A device is timed by its own marks around
several runs in a row, as in training, where the host runs ahead: the device's seconds count, or
those of the launches where they are more.
Source: Chen and Revels, "Robust benchmarking in noisy environments", 2016 (the minimum).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from worker.device.device import Device

Clock = Callable[[], float]
CONFIRMED = 1.05  # of the smallest time: a second one up to here confirms it
IN_A_ROW = 8  # runs of a device between two marks
MOST = 4  # times the repeats, until the smallest time is confirmed


class Timing(NamedTuple):
    """Times of the repeats of one piece of work.

    Attributes:
        seconds: the smallest time.
        spread: how much longer the median is, as a share of it; what else ran then is seen in it.
    """

    seconds: float
    spread: float


def timing_of(taken: list[float]) -> Timing:
    """The timing that these times are of."""
    least = min(taken)
    return Timing(least, statistics.median(taken) / least - 1 if least > 0 else 0.0)


class Bench:
    """Where, how often and by which clock something is measured.

    Args:
        device: that is measured.
        repeats: measurements at least; half as many come first, unmeasured.
        clock: seconds of a processor; None: the process's own.
    """

    def __init__(self, device: Device, repeats: int, clock: Clock | None = None) -> None:
        self.device = device
        self.repeats = repeats
        self._clock = clock or time.process_time
        self.spread = 0.0  # the largest since it was last set to 0

    def seconds(self, work: Callable[[], object]) -> float:
        """Seconds of a piece of work, everything that it queued on the device included."""
        for _ in range((self.repeats + 1) // 2):
            work()
        taken: list[float] = []
        while len(taken) < self.repeats or not self._is_enough(taken):
            taken.append(self._once(work))
        found = timing_of(taken)
        self.spread = max(self.spread, found.spread)
        return found.seconds

    def _is_enough(self, taken: list[float]) -> bool:
        if len(taken) >= MOST * self.repeats or len(taken) == 1 == self.repeats:
            return True
        least, second = sorted(taken)[:2]
        return second <= CONFIRMED * least

    def _once(self, work: Callable[[], object]) -> float:
        """Seconds of one measurement, for each run."""
        device = self.device
        if device.torch_device.type == "cpu":
            start_s = self._clock()
            work()
            return self._clock() - start_s
        start = device.mark()
        for _ in range(IN_A_ROW):
            work()
        end = device.mark()
        device.host(torch.zeros(1, device=device.torch_device))  # behind both marks
        return device.seconds(start, end) / IN_A_ROW
