"""The status of one job: what is written of it, and what is known to be there.

Invariant: a sentence on a job that is not followed is written once, whatever asks for it again and
again; what goes by itself is no warning before `TOLD_S`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from heddle_operator.controller.effective_spec import stub_of
from heddle_operator.controller.job_work import ControllerContext
from heddle_operator.controller.writers.event_posts import EventPosts
from heddle_operator.controller.writers.status_throttle import PROGRESS_S, StatusThrottle
from heddle_operator.kube.client import ApiRefused
from heddle_operator.kube.earlier_objects import TOLD_S
from heddle_operator.kube.owned_objects import JobObjects, now_text
from heddle_operator.report.status import Refused, Status, Waits, refused_status, waiting_status
from heddle_operator.state.actions import RecordEvent

LOG = logging.getLogger(__name__)
RETRY_S = 2.0  # after the API server refused something that is not a pod


class StatusWriter:
    """Writes the status of one job.

    Args:
        body: the HeddleJob object.
        context: what all jobs share.
        posts: of the job's Events.

    Attributes:
        known: the status that is there, as far as this operator knows.
    """

    def __init__(
        self, body: Mapping[str, Any], context: ControllerContext, posts: EventPosts
    ) -> None:
        self.known: Mapping[str, Any] = body.get("status") or {}
        self._uid = body["metadata"]["uid"]
        self._stub = stub_of(body)
        self._generation = self._stub.metadata.generation
        self._context = context
        self._posts = posts
        self._throttle = StatusThrottle()
        self._said = ("", "")  # reason and sentence, while the job is not followed
        self._tell_s = math.inf  # when an Event says so, too

    def write_anew(self) -> None:
        """Others may have written the status meanwhile: whatever is to be said is said again."""
        self._throttle = StatusThrottle()
        self._said = ("", "")

    async def write(self, objects: JobObjects, status: Status, *, has_ended: bool) -> float | None:
        """Write the status of a job that is followed, if it is due; seconds until it may be.

        Raises:
            ApiRefused: it cannot be written.
        """
        wait_s = self._throttle.wait_s(status, time.monotonic())
        if wait_s > 0 and not has_ended:
            return min(wait_s, PROGRESS_S)
        if self._throttle.differs(status):
            await objects.write_status(status)
            self._throttle.written(status, time.monotonic())
            self.known = status
        return None if has_ended else PROGRESS_S

    async def refuse(self, sentence: str, reason: Refused, trains: bool) -> None:
        """Say why the job cannot be run; a change of its spec starts it anew.

        It asks for no GPUs meanwhile; what its pods hold is theirs.

        Args:
            sentence: why.
            reason: in one word.
            trains: its pods do, without the operator.
        """
        if self._said == (reason, sentence):
            return
        self._said = reason, sentence
        words = _while_it_trains(sentence) if trains else sentence
        LOG.warning("it is refused: %s", words)
        await self._say(
            refused_status(self._generation, words, self.known, now_text(), reason, trains)
        )
        self._post(reason, words)

    async def wait(self, sentence: str, reason: Waits, trains: bool) -> None:
        """Say for what the job waits that may come by itself; an Event does so after `TOLD_S`.

        Args:
            sentence: for what.
            reason: in one word.
            trains: see `refuse`.
        """
        words = _while_it_trains(sentence) if trains else sentence
        if self._said != (reason, sentence):
            self._said, self._tell_s = (reason, sentence), time.monotonic() + TOLD_S
            LOG.info("it waits: %s", words)
            await self._say(waiting_status(self._generation, words, self.known, now_text(), reason))
        elif time.monotonic() >= self._tell_s:
            self._tell_s = math.inf
            self._post(reason, words)

    async def fail(self, error: str) -> None:
        """Say that the operator itself failed on the job, and follows it anew in a while.

        Args:
            error: in a few words.
        """
        self.write_anew()
        if self.known.get("phase") in ("Complete", "Failed"):
            return
        words = f"the operator itself failed on this job, and tries again: {error}"
        try:
            status = waiting_status(
                self._generation, words, self.known, now_text(), "OperatorFailed"
            )
            await self._objects.write_status(status)
            self.known = {**self.known, **status}
        except Exception as failure:  # the job is followed anew, whatever its status holds
            LOG.warning("its status does not say so: %r", failure)

    @property
    def _objects(self) -> JobObjects:
        return JobObjects(self._stub, self._context.api, self._context.identity)

    async def _say(self, status: Status) -> None:
        self._context.arbiter.forget(self._uid)
        namespace = self._stub.metadata.namespace
        self._context.metrics.phase(namespace, self._stub.name, status["phase"])
        await until_done(partial(self._objects.write_status, status))
        self.known = {**self.known, **status}

    def _post(self, reason: Refused | Waits, words: str) -> None:
        key = f"{reason}-{self._generation}-{words}"
        self._posts.post(self._objects, RecordEvent(key, reason, words))


async def until_done(work: Callable[[], Awaitable[None]]) -> None:
    """Do it until the API server lets it be done."""
    while True:
        try:
            await work()
            return
        except ApiRefused as error:
            LOG.warning("%s", error)
            await asyncio.sleep(RETRY_S)


def _while_it_trains(sentence: str) -> str:
    return f"{sentence}; its pods train on without the operator until that is corrected"
