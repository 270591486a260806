"""Tasks of an event loop that nobody awaits: each is kept until it ends, and says how it failed.

Source: asyncio's documents of `create_task`: the loop itself keeps weak references only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

LOG = logging.getLogger(__name__)


class Background:
    """The tasks of one owner that have not ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Begin; `name` is for the log."""
        task = asyncio.create_task(work, name=name)
        self.keep(task)
        return task

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a task that was begun elsewhere."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Give all of them up."""
        for task in self._tasks:
            task.cancel()

    async def finish(self, limit_s: float | None = None) -> None:
        """Return once all have ended, or the time is over."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)

    async def close(self) -> None:
        """Give all of them up, and wait for their ends."""
        self.cancel()
        await self.finish()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("%s failed", task.get_name(), exc_info=error)
