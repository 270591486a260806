"""Events of a job that are on their way to the API server: no look at the job waits for them."""

from __future__ import annotations

import asyncio

from heddle_operator.kube.owned_objects import JobObjects
from heddle_operator.state.actions import RecordEvent


class EventPosts:
    """The posts that are not done."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def post(self, objects: JobObjects, event: RecordEvent) -> None:
        """Begin to post an Event of these objects' job."""
        task = asyncio.create_task(objects.record_event(event), name="event")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait until each is posted, or given up."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cancel(self) -> None:
        """No Event is on its way any more: the lease may be given up."""
        for task in self._tasks:
            task.cancel()
        await self.finish()
