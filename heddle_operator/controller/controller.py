"""All jobs of an operator: a task for each, started, restarted and ended as objects come and go.

Invariant: no task starts before the cache is whole, because a plan for half of the nodes would be
a plan for a loss; a job that ended is not followed again until its spec changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from heddle_operator.controller.job_controller import ControllerContext, JobController, stub_of
from heddle_operator.kube.client import ApiRefused
from heddle_operator.kube.owned_objects import JobObjects

LOG = logging.getLogger(__name__)
RESTART_S = 5.0  # after a task failed for a reason that it should not have
GONE_GRACE_S = 2  # for pods of a job that was deleted


class Controller:
    """Starts, restarts and ends the task of each job, by uid."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._runs: dict[str, tuple[JobController, asyncio.Task[None]]] = {}
        self._generations: dict[str, int] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_whole = asyncio.Event()

    def enqueue(self, job_uid: str) -> None:
        """Let a job be reconciled, or, with "", all of them."""
        for uid, (run, _) in self._runs.items():
            if job_uid in ("", uid):
                run.trigger.set()

    def start(self) -> None:
        """The cache is whole: jobs may be followed."""
        self._is_whole.set()

    def put(self, body: Mapping[str, Any]) -> None:
        """A job is there; its task is started, or started anew if its spec changed."""
        metadata = body["metadata"]
        uid, generation = metadata["uid"], int(metadata.get("generation", 0))
        if metadata.get("deletionTimestamp"):
            self.drop(body)
            return
        if self._generations.get(uid) == generation:
            return
        self._generations[uid] = generation
        self._stop(uid)
        run = JobController(body, self._context)
        name = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
        task = asyncio.create_task(self._guard(name, run), name=f"job {name}")
        self._runs[uid] = (run, task)

    def drop(self, body: Mapping[str, Any]) -> None:
        """A job was deleted: its pods go at once, everything else by its owner references."""
        metadata = body["metadata"]
        uid = metadata["uid"]
        if self._generations.pop(uid, None) is None:
            return
        self._stop(uid)
        self._context.metrics.forget(metadata.get("namespace", "default"), metadata["name"])
        self._spawn(self._remove_pods(body))

    async def close(self) -> None:
        """End all tasks; the jobs train on."""
        tasks = [task for _, task in self._runs.values()] + list(self._ending)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._runs.clear()

    def _stop(self, uid: str) -> None:
        if uid in self._runs:
            _, task = self._runs.pop(uid)
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _guard(self, name: str, run: JobController) -> None:
        """Follow a job; a defect of ours costs this job a pause, and the others nothing."""
        await self._is_whole.wait()
        while True:
            try:
                await run.run()
            except Exception:
                LOG.exception("job=%s failed in the operator; it is followed anew", name)
                await asyncio.sleep(RESTART_S)
            else:
                return

    async def _remove_pods(self, body: Mapping[str, Any]) -> None:
        objects = JobObjects(stub_of(body), self._context.api)
        pods = self._context.cache.own("Pod", body["metadata"]["uid"])
        try:
            await objects.remove_pods(pods, GONE_GRACE_S)
        except ApiRefused as error:
            LOG.warning("pods of a deleted job stay until they are collected: %s", error)
