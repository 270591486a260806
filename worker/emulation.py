"""Emulated devices: a rank computes really and then waits until its profiled time has passed.

The rank keeps a due time, when the emulated device would be done; real work that is faster is
hidden, so Python and gloo
overheads do not add up.  This validates the runtime and the schedule against the simulation, not
the profile: a result made this way is called emulated.
Source: design, "Emulated devices".
"""

from __future__ import annotations

import time
from typing import Protocol

from planner.cost import RankTimes

OVERRUN = 1.05  # a stage that takes this much longer than its profile is counted


class Pace(Protocol):
    """Called by the engine around everything that takes time on a device."""

    overruns: int

    def begin(self) -> None:
        """A step begins."""

    def forward(self) -> None:
        """One micro-batch went forward."""

    def backward(self) -> None:
        """One micro-batch went backward."""

    def link(self, direction: int) -> None:
        """A message passed the edge to the previous (-1) or the next (+1) stage."""

    def arrival(self) -> float:
        """When this rank has all its gradients, by the emulated device."""

    def synchronised(self, last_arrival: float) -> None:
        """All gradients are summed and the step is applied; the last rank arrived then."""


class RealPace:
    """A real device: nothing waits."""

    overruns = 0

    def begin(self) -> None:
        """Nothing to do."""

    def forward(self) -> None:
        """Nothing to do."""

    def backward(self) -> None:
        """Nothing to do."""

    def link(self, direction: int) -> None:
        """Nothing to do."""

    def arrival(self) -> float:
        """Of no use on a real device."""
        return 0.0

    def synchronised(self, last_arrival: float) -> None:
        """Nothing to do."""


class EmulatedPace:
    """A device of the profile, on a core that is at least three times faster."""

    def __init__(self, times: RankTimes) -> None:
        self._times = times
        self._due = 0.0
        self._in_step = False
        self.overruns = 0

    def begin(self) -> None:
        """Start the device's clock at the step's beginning."""
        self._due = max(self._due, time.monotonic()) if self._in_step else time.monotonic()
        self._in_step = True

    def forward(self) -> None:
        """Wait until the forward pass would be done."""
        self._work(self._times.forward_s)

    def backward(self) -> None:
        """Wait until the backward pass would be done."""
        self._work(self._times.backward_s)

    def link(self, direction: int) -> None:
        """Wait until the message would have passed.

        Nothing outside a step (the engine's own start-up messages).
        """
        if self._in_step:
            self._due = max(self._due, time.monotonic())
            self._wait(self._times.to_next_s if direction > 0 else self._times.to_previous_s)

    def arrival(self) -> float:
        """The due time after the last backward pass."""
        return self._due

    def synchronised(self, last_arrival: float) -> None:
        """Wait until sum and optimizer step would be done, counted from the last arrival."""
        self._due = last_arrival
        self._work(self._times.sync_s + self._times.optimizer_s)

    def _work(self, seconds: float) -> None:
        late = time.monotonic() - self._due
        if late > seconds * OVERRUN:
            self.overruns += 1
        self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        self._due += seconds
        left = self._due - time.monotonic()
        if left > 0:
            time.sleep(left)
