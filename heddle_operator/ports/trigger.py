"""What makes the loop of a job reconcile again: anything that changed anywhere.

The loop is level-triggered: it reads everything each time, so a missed or doubled trigger costs
time, never correctness.
Source: Kubernetes' controllers (the work queue, with one key).
"""

from __future__ import annotations

import asyncio
import time


class Trigger:
    """One trigger that all sources of change share.

    Attributes:
        since_s: of the monotonic clock, when the first change came that the last `wait` ended for;
            None: it ended without one.
    """

    def __init__(self) -> None:
        self.since_s: float | None = None
        self._event = asyncio.Event()
        self._set_s = 0.0

    def set(self) -> None:
        """Something changed."""
        if not self._event.is_set():
            self._set_s = time.monotonic()
        self._event.set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Wait for a change, at most so long; True if there was one."""
        try:
            async with asyncio.timeout(timeout_s):  # wait_for loses a cancellation beside an event
                await self._event.wait()
        except TimeoutError:
            self.since_s = None
            return False
        self._event.clear()
        self.since_s = self._set_s
        return True
