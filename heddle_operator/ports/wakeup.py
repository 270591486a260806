"""What wakes the loop: anything that changed anywhere.

A missed or doubled wake costs time, never correctness: the loop looks at everything each time.
"""

from __future__ import annotations

import asyncio


class Wake:
    """One event that all sources of change share."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Something changed."""
        self._event.set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Wait for a change, at most so long; True if there was one."""
        try:
            async with asyncio.timeout(timeout_s):  # wait_for loses a cancellation beside a wake
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
