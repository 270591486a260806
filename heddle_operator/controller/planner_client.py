"""Plans are searched beside the loop: a question is an action, its answer part of a later Observed.

Invariant: only the newest answers are kept; a search that failed is forgotten after a while, so
that it is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.controller.planner_pool import GaveWay, PlannerPool, SearchFailed
from heddle_operator.controller.planner_server import SearchSettings
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.actions import RequestPlan
from heddle_operator.state.plan_reply import PlanKey, PlanReply
from heddle_operator.state.recent import Recent
from heddle_operator.state.settings import Settings
from heddle_operator.state.worth import NodeSizes, Worth, nodes_of
from planner.model.workload import GpuWire
from planner.plans.plan import Plan
from worker.contract import Reason

LOG = logging.getLogger(__name__)
REPLIES_KEPT = 64  # of 273 kB at 1,000 nodes; a decision needs the newest few
WORTHS_KEPT = 16
FAILED_S = 30.0  # a search that failed is tried again after so long


class PlannerClient:
    """The questions of one job and their answers.

    Args:
        settings: of all its searches.
        trigger: set by each answer.
        environment: further variables of the planner's processes, if it has its own.
        pool: that searches; by default one process of its own.
        job: uid, by which the pool knows whose searches these are.
        planned: takes the seconds from a question to its answer.
    """

    def __init__(
        self,
        settings: SearchSettings,
        trigger: Trigger,
        environment: Mapping[str, str] | None = None,
        pool: PlannerPool | None = None,
        job: str = "",
        planned: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.replies: dict[PlanKey, PlanReply] = {}
        self.repriced_s: float | None = None
        self._settings = settings
        self._trigger = trigger
        self._job = job
        self._planned = planned
        self._owns_pool = pool is None
        self._pool = pool or PlannerPool(1, environment=environment)
        self._noted: Recent[str] = Recent()  # what the planner said already
        self._searches: dict[PlanKey, asyncio.Task[None]] = {}
        self.worths: dict[NodeSizes, Worth] = {}
        self._weighings: dict[NodeSizes, asyncio.Task[None]] = {}

    @property
    def in_flight(self) -> frozenset[PlanKey]:
        """Questions of the searches that run now."""
        return frozenset(self._searches)

    async def start(self) -> None:
        """Start a process, so that the first question finds it warm."""
        await self._pool.start()

    def request(self, action: RequestPlan) -> None:
        """Ask for a plan, unless it is known or asked for."""
        if action.key in self.replies or action.key in self._searches:
            return
        work = self._search(action)
        self._searches[action.key] = asyncio.create_task(work, name="search a plan")

    def reprice(self, settings: SearchSettings, now: float) -> None:
        """Search by other times from now on; what was found by the old ones is forgotten.

        Args:
            settings: of all further searches.
            now: by the clock of epoch records.
        """
        self._settings = settings
        self.repriced_s = now
        self.replies.clear()
        for task in self._searches.values():
            task.cancel()
        self._trigger.set()

    def follow_wire(self, wire: GpuWire, now: float) -> bool:
        """Price by the wire that ranks use; False where nothing changes."""
        if wire == self._settings.wire:
            return False
        self.reprice(replace(self._settings, wire=wire), now)
        return True

    def weigh(self, sizes: NodeSizes, reason: Reason = "join") -> None:
        """Ask what GPUs of each type are worth, unless it is known or asked for.

        Args:
            sizes: nodes by GPU type.
            reason: for what the answer is waited.
        """
        if sizes not in self.worths and sizes not in self._weighings:
            work = self._weigh(sizes, reason)
            self._weighings[sizes] = asyncio.create_task(work, name="weigh GPU types")

    async def close(self) -> None:
        """Ask for nothing more; the processes end that nobody else uses."""
        searches = (*self._searches.values(), *self._weighings.values())
        for task in searches:
            task.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
        if self._owns_pool:
            await self._pool.close()

    async def _search(self, action: RequestPlan) -> None:
        began_s = time.monotonic()
        try:
            data = await self._pool.search(self._settings, action, self._job)
        except GaveWay:
            self._trigger.set()  # the next look asks again
            return
        except SearchFailed as error:
            LOG.warning("%s: %s", action, error)
            self._reply(action.key, PlanReply(plan=None, problem=str(error)))
            asyncio.get_running_loop().call_later(FAILED_S, self._forget, action.key)
            return
        finally:
            self._searches.pop(action.key, None)
        self._planned(time.monotonic() - began_s)
        LOG.debug("the planner answers %s: %s", action, data.get("problem") or "a plan")
        plan = data.pop("plan", None)
        data["notes"] = tuple(data.get("notes", ()))
        data["group_bytes"] = tuple(data.get("group_bytes", {}).items())
        for note in data["notes"]:
            if self._noted.add(note):
                LOG.info("the planner says: %s", note)
        gpus = 0 if plan else action.max_gpus.allowed(action.composition)
        self._reply(
            action.key, PlanReply(plan=Plan.from_json(plan) if plan else None, gpus=gpus, **data)
        )

    async def _weigh(self, sizes: NodeSizes, reason: Reason) -> None:
        try:
            data = await self._pool.weigh(self._settings, nodes_of(sizes), self._job, reason)
        except GaveWay:
            self._trigger.set()
            return
        except SearchFailed as error:
            LOG.warning("the worth of GPU types is unknown: %s", error)
            data = {}
        finally:
            self._weighings.pop(sizes, None)
        self.worths[sizes] = Worth.learnt(
            data.get("curves", {}), data.get("mixed", ()), data.get("is_complete", False)
        )
        if len(self.worths) > WORTHS_KEPT:
            del self.worths[next(iter(self.worths))]
        self._trigger.set()

    def _reply(self, key: PlanKey, reply: PlanReply) -> None:
        self.replies[key] = reply
        if len(self.replies) > REPLIES_KEPT:
            del self.replies[next(iter(self.replies))]
        self._trigger.set()

    def _forget(self, key: PlanKey) -> None:
        self.replies.pop(key, None)
        self._trigger.set()


def search_settings_of(job: HeddleJob, settings: Settings) -> SearchSettings:
    """Part of the question that all searches of a job share."""
    workload = job.workload
    return SearchSettings(
        model=workload.model.name,
        global_batch=workload.global_batch,
        sequence_length=workload.sequence_length,
        seed=settings.plan_seed,
        min_holders=job.spec.elastic.min_holders,
        budget_evaluations=settings.plan_evaluations,
        budget_s=job.spec.planner.budget_seconds,
        profiles=settings.profiles,
        shape=job.training.shape,
        precision=workload.precision,
        wire=workload.wire,
        recompute=workload.recompute,
        zero=job.spec.planner.zero,
        objective="cost" if job.spec.planner.objective == "Cost" else "throughput",
    )
