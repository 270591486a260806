"""Where the time of a step goes on one rank: forward, backward, and waiting for neighbours.

The device has the clock: its marks are read when the step's one wait is over.

Invariant: parts do not overlap; what is in none of them is the sum of gradients, the update, or the
time of Python and DeepSpeed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

from worker.device.device import CPU, Device

Part = Literal["forward", "backward", "waiting"]
PARTS: tuple[Part, ...] = ("forward", "backward", "waiting")


class StepClock:
    """Seconds of each part since they were last taken."""

    def __init__(self, device: Device = CPU) -> None:
        self._device = device
        self._marks: list[tuple[Part, Any, Any]] = []

    @contextlib.contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Count what is inside; an emulated device's waiting for its time counts as its work."""
        start = self._device.mark()
        try:
            yield
        finally:
            self._marks.append((name, start, self._device.mark()))

    def take(self) -> tuple[float, ...]:
        """Seconds in the order of PARTS; they start at 0 again.

        To be called when the device has been waited for.
        """
        found = dict.fromkeys(PARTS, 0.0)
        for name, start, end in self._marks:
            found[name] += self._device.seconds(start, end)
        self._marks.clear()
        return tuple(found.values())

    def forget(self) -> None:
        """Start at 0 again; nobody need have waited for the device."""
        self._marks.clear()


def computing_s(parts_s: tuple[float, ...]) -> float:
    """Seconds of forward and backward passes; what a rank waited for is none of its own work."""
    by_part = dict(zip(PARTS, parts_s, strict=True))
    return by_part["forward"] + by_part["backward"]
