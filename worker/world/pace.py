"""Emulated devices: a rank computes really and then waits until its profiled time has passed.

The rank keeps a due time, when the emulated device would be done; devices that meet tell each other
theirs.  Real work that is faster is hidden, so Python and gloo overheads do not add up.  This
validates the runtime and the schedule against the simulation, not the profile: a result made this
way is called emulated.
"""

from __future__ import annotations

import time
from typing import Protocol

from planner.cost.evaluate import RankTimes

HIDDEN_S = 0.02  # work between two steps, reports and data, that the device's clock does not see
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

    def due(self) -> float | None:
        """When the emulated device will be free; None on a real one, and outside a step."""

    def link(self, direction: int, met_at_s: float) -> None:
        """A message passes to the previous (-1) or the next (+1) stage, from `met_at_s` on."""

    def arrival(self) -> float:
        """When this rank has all its gradients, by the emulated device."""

    def synchronised(self, last_arrival_s: float) -> None:
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

    def due(self) -> None:
        """A real device has no clock of its own."""

    def link(self, direction: int, met_at_s: float) -> None:
        """Nothing to do."""

    def arrival(self) -> float:
        """Of no use on a real device."""
        return 0.0

    def synchronised(self, last_arrival_s: float) -> None:
        """Nothing to do."""


class EmulatedPace:
    """A device of the profile, on a core that is at least three times faster."""

    def __init__(self, times: RankTimes) -> None:
        self._times = times
        self._due_s = 0.0
        self._in_step = False
        self.overruns = 0

    def begin(self) -> None:
        """Start a step where the last one ended; what a busy machine lost is not made up for."""
        now = time.monotonic()
        self._due_s = self._due_s if now - self._due_s < HIDDEN_S else now
        self._in_step = True

    def forward(self) -> None:
        """Wait until the forward pass would be done."""
        self._work(self._times.forward_s)

    def backward(self) -> None:
        """Wait until the backward pass would be done."""
        self._work(self._times.backward_s)

    def due(self) -> float | None:
        """The device's clock; None outside a step, where the engine sends its start-up messages."""
        return self._due_s if self._in_step else None

    def link(self, direction: int, met_at_s: float) -> None:
        """Wait until the message would have passed, counted from when both devices were free."""
        self._due_s = met_at_s
        self._wait(self._times.to_next_s if direction > 0 else self._times.to_previous_s)

    def arrival(self) -> float:
        """The due time after the last backward pass."""
        return self._due_s

    def synchronised(self, last_arrival_s: float) -> None:
        """Wait until sum, optimizer step and broadcasts would be done, from the last arrival."""
        self._due_s = last_arrival_s
        times = self._times
        self._work(times.sync_s + times.optimizer_s + times.broadcast_s)

    def _work(self, seconds: float) -> None:
        late_s = time.monotonic() - self._due_s
        if late_s > seconds * OVERRUN:
            self.overruns += 1
        self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        self._due_s += seconds
        left_s = self._due_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
