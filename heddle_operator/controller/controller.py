"""All jobs of an operator: a task for each, started, restarted and ended as objects come and go.

Invariant: no task starts before the cache is whole for its namespace, because a plan for half of
the nodes would be a plan for a loss, and none runs while the operator does not lead; a job that
ended is not followed again until its spec changes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from heddle_operator.controller.effective_spec import stub_of
from heddle_operator.controller.job_controller import JobController
from heddle_operator.controller.job_work import ControllerContext
from heddle_operator.kube.client import ApiRefused
from heddle_operator.kube.malformed_objects import what_is_wrong
from heddle_operator.kube.owned_objects import JobObjects, now_text
from heddle_operator.report.status import deleted_status
from heddle_operator.state.recent import Recent
from planner.background import Background
from planner.pauses import doubled_s
from worker.log_lines import begin_about

LOG = logging.getLogger(__name__)
RESTART_S = (5.0, 300.0)  # first and longest pause after a task failed by a defect of ours
GONE_GRACE_S = 2  # for pods of a job that was deleted
UNHEARD_S = 30.0  # Kopf tells of a change within a second, and watches again within some


class Controller:
    """Starts, restarts and ends the task of each job, by uid."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        # The task of each job; None while the operator does not lead.
        self._runs: dict[str, tuple[JobController, asyncio.Task[None] | None]] = {}
        self._leads = False
        self._generations: dict[str, int] = {}
        self._bodies: dict[str, Mapping[str, Any]] = {}
        self._gone: Recent[str] = Recent()
        # Jobs that were deleted and are there until somebody takes their finalizers off, by uid.
        self._held: dict[str, Mapping[str, Any]] = {}
        self._ending = Background()
        self._is_whole = asyncio.Event()
        self._listed: Callable[[str], Awaitable[None]] = _at_once
        self._started_s = float("inf")
        # Jobs that are there and of which Kopf did not tell: generation, and since when.
        self._unheard: dict[str, tuple[int, float]] = {}

    def enqueue(self, job_uid: str) -> None:
        """Let a job be reconciled."""
        if job_uid in self._runs:
            self._runs[job_uid][0].trigger.set()

    def enqueue_namespace(self, namespace: str) -> None:
        """Let all jobs of a namespace be reconciled."""
        for uid, body in self._bodies.items():
            if body["metadata"].get("namespace", "default") == namespace:
                self.enqueue(uid)

    def start(self, listed: Callable[[str], Awaitable[None]] | None = None) -> None:
        """The cache is whole: jobs may be followed.

        Args:
            listed: waits until it is whole for a namespace too; None: it is for all.
        """
        self._listed = listed or _at_once
        self._is_whole.set()
        self._started_s = time.monotonic()
        self._end_held(tuple(self._held.values()))

    def lead(self) -> None:
        """This operator holds the Lease: follow the jobs, and go on with those that were."""
        self._leads = True
        self._end_held(tuple(self._held.values()))
        for uid, (run, task) in tuple(self._runs.items()):
            if task is None:
                self._follow(uid, run)

    async def rest(self) -> None:
        """The Lease is lost: nothing is decided, and what was heard of jobs stays for later.

        Returns once no task is left that was started while this operator led.
        """
        self._leads = False
        tasks = []
        for uid, (run, task) in self._runs.items():
            if task is not None and not task.done():
                run.rest()
                tasks.append(task)
                self._runs[uid] = (run, None)
        await _cancelled(tasks)
        await self._ending.finish()

    def seen(self, body: Mapping[str, Any]) -> None:
        """A job is there, as another watch than Kopf's tells; Kopf is to tell of it, too."""
        metadata = body["metadata"]
        uid, generation = metadata["uid"], int(metadata.get("generation", 0))
        is_heard = uid in self._gone or self._generations.get(uid, -1) >= generation
        if not is_heard and self._unheard.get(uid, (-1, 0.0))[0] != generation:
            self._unheard[uid] = generation, time.monotonic()

    def problem(self, now: float) -> str:
        """Sentence that Kopf has stopped to deliver events; "" while it delivers, or need not.

        Args:
            now: by the monotonic clock.
        """
        since_s = max(min((at for _, at in self._unheard.values()), default=now), self._started_s)
        if now - since_s > UNHEARD_S:
            return f"the watch of HeddleJobs has missed a change for {now - since_s:.0f} s"
        return ""

    def put(self, body: Mapping[str, Any]) -> None:
        """A job is there; its task is started, or started anew if its spec changed."""
        metadata = body["metadata"]
        uid, generation = metadata["uid"], int(metadata.get("generation", 0))
        if self._unheard.get(uid, (generation + 1, 0.0))[0] <= generation:
            del self._unheard[uid]
        if metadata.get("deletionTimestamp"):
            is_followed = uid in self._generations
            self.drop(body)
            self._held[uid] = body
            if not is_followed:
                self._end_held((body,))
            return
        if uid in self._gone:
            return
        if self._generations.get(uid) == generation:
            if uid in self._runs:
                self._runs[uid][0].annotated(body)
            return
        self._generations[uid] = generation
        self._bodies[uid] = body
        before = self._runs[uid][0].accepted if uid in self._runs else None
        self._stop(uid)
        api = self._context.api.telling(partial(self._end_with_namespace, body))
        run = JobController(body, replace(self._context, api=api), before)
        self._runs[uid] = (run, None)
        if self._leads:
            self._follow(uid, run)

    def drop(self, body: Mapping[str, Any]) -> None:
        """A job was deleted: its pods go at once, everything else by its owner references.

        Its agents are told, too: a kubelet may let a pod that it was told to end train on through
        the grace of its template, however short that of the deletion is.
        """
        metadata = body["metadata"]
        uid = metadata["uid"]
        self._gone.add(uid)  # an event that is late does not bring it back
        self._unheard.pop(uid, None)
        self._held.pop(uid, None)
        self._bodies.pop(uid, None)
        if self._generations.pop(uid, None) is None:
            return
        if uid in self._runs:
            self._runs[uid][0].gone()
        self._stop(uid)
        self._context.arbiter.forget(uid)
        self._context.metrics.forget(metadata.get("namespace", "default"), metadata["name"])
        if self._leads:  # another operator removes them otherwise, or their owner's end does
            self._ending.start(self._remove_pods(body), "end the pods of a deleted job")

    def _end_with_namespace(self, body: Mapping[str, Any]) -> None:
        """Its namespace is being deleted, and the job with it: Kubernetes deletes its pods first.

        Nothing can be created there any more, so nothing is planned either.
        """
        metadata = body["metadata"]
        if metadata["uid"] not in self._gone:
            LOG.info("job=%s ends: its namespace is being deleted", metadata["name"])
            self.drop(body)

    def keep_only(self, namespace: str, uids: Collection[str], version: int) -> None:
        """Drop the jobs that a full list lacks: their deletion was told while nobody listened.

        Args:
            namespace: that was listed; "": all.
            uids: of the jobs that are there.
            version: of the list; a job that is newer was made since.
        """
        for uid, body in (*self._bodies.items(), *self._held.items()):
            metadata = body["metadata"]
            is_listed = namespace in ("", metadata.get("namespace", "default"))
            is_old = int(metadata.get("resourceVersion") or 0) <= version
            if is_listed and is_old and uid not in uids:
                self.drop(body)

    async def close(self) -> None:
        """End all tasks; the jobs train on."""
        self._leads = False
        runs, self._runs = self._runs, {}
        await _cancelled([task for _, task in runs.values() if task is not None])
        await self._ending.close()
        for run, _ in runs.values():
            await run.close()

    def _follow(self, uid: str, run: JobController) -> None:
        metadata = self._bodies[uid]["metadata"]
        name = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
        self._runs[uid] = run, asyncio.create_task(self._guard(name, run), name=f"job {name}")

    def _stop(self, uid: str) -> None:
        if uid not in self._runs:
            return
        run, task = self._runs.pop(uid)
        if task is None:
            self._ending.start(run.close(), "close a job")
            return
        task.cancel()
        self._ending.keep(task)

    async def _guard(self, name: str, run: JobController) -> None:
        """Follow a job; a defect of ours costs this job a growing pause, and the others nothing."""
        namespace, _, job = name.partition("/")
        begin_about(namespace=namespace, job=job)
        await self._is_whole.wait()
        await self._listed(namespace)
        failures, known = 0, ""
        while True:
            started_s = time.monotonic()
            try:
                await run.run()
            except Exception as error:
                said = repr(error)
                is_new = time.monotonic() - started_s > RESTART_S[1]
                failures = 1 if is_new else failures + 1
                pause_s = doubled_s(RESTART_S[0], failures, RESTART_S[1])
                LOG.error(
                    "it failed in the operator; it is followed anew in %g s: %s",
                    pause_s,
                    said,
                    exc_info=said != known,  # the same trace again says nothing
                )
                known = said
                await run.fail(what_is_wrong(error))
                await asyncio.sleep(pause_s)
            else:
                return

    def _end_held(self, bodies: Collection[Mapping[str, Any]]) -> None:
        """End the pods of jobs that were deleted while no operator led, and have finalizers."""
        if self._leads and self._is_whole.is_set():
            for body in bodies:
                self._ending.start(self._remove_pods(body), "end the pods of a deleted job")

    async def _remove_pods(self, body: Mapping[str, Any]) -> None:
        objects = JobObjects(stub_of(body), self._context.api)
        pods = self._context.cache.own("Pod", objects.namespace, body["metadata"]["uid"])
        try:
            await objects.remove_pods(pods, GONE_GRACE_S)
        except ApiRefused as error:
            LOG.warning("pods of a deleted job stay until they are collected: %s", error)
        await self._say_deleted(objects, body)

    async def _say_deleted(self, objects: JobObjects, body: Mapping[str, Any]) -> None:
        """Say in the status of a deleted job what holds it; one that had ended keeps its end."""
        metadata, before = body["metadata"], body.get("status") or {}
        finalizers = metadata.get("finalizers") if metadata.get("deletionTimestamp") else ()
        if not finalizers or before.get("phase") in ("Complete", "Failed"):
            return
        generation = int(metadata.get("generation", 0))
        try:
            await objects.write_status(deleted_status(generation, finalizers, before, now_text()))
        except ApiRefused as error:
            LOG.warning("the status of a deleted job is not written: %s", error)


async def _at_once(_: str) -> None:
    """All namespaces are listed."""


async def _cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
