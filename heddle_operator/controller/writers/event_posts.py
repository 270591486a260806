"""Events of a job that are on their way to the API server: no look at the job waits for them."""

from __future__ import annotations

from heddle_operator.kube.owned_objects import JobObjects
from heddle_operator.state.actions import RecordEvent
from planner.background import Background


class EventPosts:
    """The posts that are not done."""

    def __init__(self) -> None:
        self._posting = Background()

    def post(self, objects: JobObjects, event: RecordEvent) -> None:
        """Begin to post an Event of these objects' job."""
        self._posting.start(objects.record_event(event), "event")

    async def finish(self) -> None:
        """Wait until each is posted, or given up."""
        await self._posting.finish()

    async def cancel(self) -> None:
        """No Event is on its way any more: the lease may be given up."""
        await self._posting.close()
