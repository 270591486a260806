"""One pass in a turn of the event loop, so that the loop serves others between two passes.

A change that concerns many jobs wakes all of them in one turn.  Without this their passes would
run one after the other before the loop renews its Lease or answers an agent.
Source: cooperative scheduling; asyncio runs all that is ready in one turn.
"""

from __future__ import annotations

import asyncio


class Turns:
    """Lets those who wait go on in order, each in a turn of its own."""

    def __init__(self) -> None:
        self._first = asyncio.Lock()

    async def wait(self) -> None:
        """Wait for a turn in which nobody else goes on."""
        async with self._first:
            await asyncio.sleep(0)
