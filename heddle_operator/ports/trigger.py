"""What makes the loop of a job reconcile again: anything that changed anywhere.

The loop is level-triggered: it reads everything each time, so a missed or doubled trigger costs
time, never correctness.
Source: Kubernetes' controllers (the work queue, with one key).
"""

from __future__ import annotations

import asyncio


class Trigger:
    """One trigger that all sources of change share."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Something changed."""
        self._event.set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Wait for a change, at most so long; True if there was one."""
        try:
            async with asyncio.timeout(timeout_s):  # wait_for loses a cancellation beside an event
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
