"""Trigger that makes the loop of a job reconcile again: anything that changed anywhere.

The loop is level-triggered: it reads everything each time, so a missed or doubled trigger costs
time, never correctness.
Source: Kubernetes' controllers (the work queue, with one key).
"""

from __future__ import annotations

import asyncio
import math
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
        self._later: asyncio.TimerHandle | None = None
        self._last_s = -math.inf  # when it was last set so

    def set(self) -> None:
        """Something changed."""
        if not self._event.is_set():
            self._set_s = time.monotonic()
        self._event.set()

    def set_soon(self, delay_s: float, pause_s: float) -> None:
        """Something changed that can wait a little, so that further changes are the same one.

        Args:
            delay_s: seconds from now.
            pause_s: from one such time to the next, at least.
        """
        if self._event.is_set() or self._later is not None:
            return
        loop = asyncio.get_running_loop()
        at_s = max(loop.time() + delay_s, self._last_s + pause_s)
        changed_s = time.monotonic()
        self._later = loop.call_at(at_s, self._set_later, at_s, changed_s)

    def _set_later(self, at_s: float, changed_s: float) -> None:
        self._later, self._last_s = None, at_s
        self.set()
        self._set_s = min(self._set_s, changed_s)

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
