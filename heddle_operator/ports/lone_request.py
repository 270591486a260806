"""A request whose answer no look at a job waits for: one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class LoneRequest:
    """At most one request that is on its way."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether its answer is still to come."""
        return self._task is not None and not self._task.done()

    def start(self, request: Coroutine[None, None, None], name: str) -> None:
        """Begin a request; the one before has ended."""
        assert not self.is_running, "one at a time"
        self._task = asyncio.create_task(request, name=name)

    async def close(self) -> None:
        """Give up the request that runs, if any."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
