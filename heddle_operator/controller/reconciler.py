"""Observe, decide, apply: the loop around the pure core.

It sleeps until something changes or the decision wants to look again; it holds no state of its own.
Source: Kubernetes' controllers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from heddle_operator.apis.errors import ClusterConflict, ClusterUnavailable
from heddle_operator.apis.gpu_wire import wire_seen
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.controller.agents import Agents
from heddle_operator.controller.node_speeds import NodeSpeeds
from heddle_operator.controller.planner_client import PlannerClient
from heddle_operator.epochs.decide import decide
from heddle_operator.ports.arbiter import Arbiter
from heddle_operator.ports.cluster import Cluster
from heddle_operator.ports.emitted_events import EmittedEvents
from heddle_operator.ports.trigger import Trigger
from heddle_operator.rules.demand import demand_of
from heddle_operator.state.actions import (
    Action,
    AdoptPlan,
    CloseEpoch,
    CreatePod,
    DeletePod,
    EndPod,
    PruneEpoch,
    RecordEvent,
    RequestPlan,
    SealEpoch,
    SendDirective,
    SendHalt,
    SendLook,
    SendSave,
    SendSuspend,
)
from heddle_operator.state.decision import Decision, sooner
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import AgentView, Observed
from heddle_operator.state.worth import NodeSizes
from planner.profiles.chosen import choose_profile
from worker.contract import Reason
from worker.log_lines import about

LOG = logging.getLogger(__name__)
RETRY_S = 1.0  # what could not be done is tried again after so long
_INDEPENDENT = (CreatePod, DeletePod, PruneEpoch)
_RECORDED = (AdoptPlan, SealEpoch, CloseEpoch)  # what Events tell of


class Reconciler:
    """The loop of one job.

    Args:
        speeds: tells which nodes are slow; None: all are as fast as is said of them, as on one
            machine, where nodes share the cores.

    Attributes:
        view: the look of the newest pass.
        done: the actions of its decision that were done.
        emitted: the Events that were told; who tells others of the job adds them.
    """

    def __init__(
        self,
        job: HeddleJob,
        cluster: Cluster,
        agents: Agents,
        planning: PlannerClient,
        trigger: Trigger,
        settings: Settings,
        *,
        on_decision: Callable[[Decision, Observed, float], None] = lambda *_: None,
        stalls_s: Callable[[], tuple[float, ...]] = tuple,
        on_event: Callable[[RecordEvent], None] = lambda _: None,
        arbiter: Arbiter | None = None,
        speeds: NodeSpeeds | None = None,
    ) -> None:
        self.job = job
        self._cluster = cluster
        self._agents = agents
        self._planning = planning
        self._trigger = trigger
        self._settings = settings
        self._on_decision = on_decision
        self._stalls_s = stalls_s
        self._on_event = on_event
        self._arbiter = arbiter
        self._speeds = speeds
        self.emitted = EmittedEvents()
        self._last = ("", "")
        self._again_s: float | None = None  # after what was not done in this pass
        self._recovering_since_s: float | None = None
        self._reached_step: int | None = None
        self.view: View | None = None
        self.done: tuple[Action, ...] = ()

    def annotate(self, annotations: Mapping[str, str] | None) -> None:
        """Read other annotations of the job from now on."""
        metadata = self.job.metadata.model_copy(update={"annotations": annotations})
        self.job = self.job.model_copy(update={"metadata": metadata})

    async def observe(self) -> Observed:
        """The whole picture: the cluster's part, the agents' and the planner's."""
        seen = await self._cluster.observe()
        self._agents.watch(seen.pods)
        agents = dict(self._agents.views)
        self._reached_step = reached_step(agents.values(), self._reached_step)
        return replace(
            seen,
            agents=agents,
            reached_step=self._reached_step,
            replies=dict(self._planning.replies),
            planning=self._planning.in_flight,
            repriced_s=self._planning.repriced_s,
            worths=self._planning.worths,
            stalls_s=self._stalls_s(),
            recovering_since_s=self._recovering_since_s,
        )

    async def reconcile(self) -> Decision:
        """One pass."""
        observed, now = await self.observe(), time.monotonic()
        if self._follows_wire(observed, now):
            observed = await self.observe()
        LOG.debug(
            "observed %d nodes, %d pods, %d agents that answer, %d records",
            len(observed.nodes),
            len(observed.pods),
            len(observed.reports),
            len(observed.epochs),
        )
        if self._speeds is not None:
            observed = self._speeds.seen(observed, now)
        view = View.of(self.job, observed, now, self._settings)
        if self._arbiter is not None:
            view = with_allowance(self._arbiter, view, self._planning.weigh)
        self.view = view
        decision = decide(view)
        self._on_decision(decision, view.observed, now)
        self._recovering_since_s = recovers_since(decision, self._recovering_since_s, now)
        record = view.situation.pending or view.situation.live
        about(epoch=record.epoch if record else 0, phase=decision.phase)
        said = (decision.phase, decision.message)
        if said != self._last:
            LOG.info("%s", decision.message)
            self._last = said
        self._again_s = None
        self.done = await self._apply_all(decision.actions)
        return replace(decision, look_again_s=sooner(decision.look_again_s, self._again_s))

    async def _apply_all(self, actions: Iterable[Action]) -> tuple[Action, ...]:
        """Do what can be done now, and answer what was done.

        An Event after a record that could not be written is not told: it may tell of that record.
        It is decided again with it.
        """
        done: list[Action] = []
        is_recorded = True
        for batch in batches(actions):
            if not is_recorded and isinstance(batch[0], RecordEvent):
                continue
            are_done = await asyncio.gather(*map(self._apply, batch))
            done += itertools.compress(batch, are_done)
            if not all(are_done) and isinstance(batch[0], _RECORDED):
                is_recorded = False
        return tuple(done)

    def _follows_wire(self, observed: Observed, now: float) -> bool:
        """Price plans by the wire that ranks use, once they say it; whether that is another one."""
        wire = wire_seen(observed.reports.values())
        if wire is None or not self._planning.follow_wire(wire, now):
            return False
        LOG.info("ranks use the wire %s, and plans are priced by it", wire)
        self.job = self.job.over(wire)
        if self._speeds is not None:
            folder = self._settings.profiles_folder
            self._speeds.price_by(choose_profile(self.job.workload, folder).profile)
        return True

    async def run(self) -> Decision:
        """Pass after pass until the job and all its pods have ended."""
        while True:
            decision = await self.reconcile()
            if nothing_is_left(decision, await self._cluster.observe()):
                return decision
            await self._trigger.wait(decision.look_again_s)

    async def _apply(self, action: Action) -> bool:
        """Do one thing; False if it could not be done now."""
        LOG.debug("%s", action)
        match action:
            case SendDirective() | SendHalt() | EndPod():
                self._tell(action)
            case SendLook() | SendSave() | SendSuspend():
                self._tell_of_checkpoints(action)
            case RequestPlan():
                self._planning.request(action)
            case RecordEvent():
                if self.emitted.add(action, time.monotonic()):
                    LOG.info("%s", action)
                    self._on_event(action)
            case _:
                try:
                    await self._cluster.apply(action)
                except ClusterConflict as error:
                    LOG.info("%s", error)
                    self._again_s = sooner(self._again_s, RETRY_S)
                    return False
                except ClusterUnavailable as error:
                    LOG.warning("not done: %s: %s", action, error)
                    again_s = RETRY_S if error.again_s is None else error.again_s
                    self._again_s = sooner(self._again_s, again_s)
                    return False
        return True

    def _tell(self, action: SendDirective | SendHalt | EndPod) -> None:
        match action:
            case SendDirective():
                self._agents.send(action.pod, action.directive)
            case SendHalt():
                self._agents.halt(action.pod, action.halt)
            case EndPod():
                self._agents.end(action.name)

    def _tell_of_checkpoints(self, action: SendLook | SendSave | SendSuspend) -> None:
        match action:
            case SendLook():
                self._agents.look(action.pod, action.look)
            case SendSave():
                self._agents.save(action.pod)
            case SendSuspend():
                self._agents.suspend(action.pod)


def recovers_since(decision: Decision, before_s: float | None, now: float) -> float | None:
    """Since when the job has recovered from a loss without a break; None where it does not."""
    if decision.phase != "Recovering":
        return None
    return now if before_s is None else before_s


def reached_step(agents: Iterable[AgentView], before: int | None) -> int | None:
    """Completed steps that ranks hold; what was known before where no rank holds any."""
    reports = [agent.report for agent in agents if agent.report is not None]
    ranks = [rank for report in reports for rank in report.ranks if rank.epoch is not None]
    return max((rank.step for rank in ranks), default=before)


def with_allowance(
    arbiter: Arbiter, view: View, weigh: Callable[[NodeSizes, Reason], None]
) -> View:
    """The look, with the GPUs that the job may plan with among all jobs.

    `weigh` asks the planner what GPUs of each type are worth, which only matters beside others.
    """
    job, observed = view.job, view.observed
    demand = demand_of(view)
    if demand is None:
        arbiter.forget(job.metadata.uid or job.name)
        return view
    allowed, dealt = arbiter.allow(demand), arbiter.dealt(demand)
    asks = bool(demand.weighed) and demand.weighed not in observed.worths and arbiter.is_shared()
    if asks:
        weigh(demand.weighed, "start" if view.situation.live is None else "join")
    is_weighing = asks and demand.worth is None
    seen = replace(observed, allowed=allowed, dealt=dealt, is_weighing=is_weighing)
    return replace(view, observed=seen)


def nothing_is_left(decision: Decision, observed: Observed) -> bool:
    """Whether the job has ended, that is on record, and no pod of it runs."""
    is_busy = any(not isinstance(action, RecordEvent) for action in decision.actions)
    ended = decision.phase in ("Complete", "Failed") and not is_busy
    return ended and all(pod.phase == "ended" and not pod.lingers for pod in observed.pods)


def batches(actions: Iterable[Action]) -> tuple[tuple[Action, ...], ...]:
    """The actions in order; those of one batch may be done at once.

    Effects of different kinds keep their order (a record before its pods, a deletion before what
    takes its place); pods and old records have names of their own and do not touch each other.
    """
    found: list[tuple[Action, ...]] = []
    for kind, run in itertools.groupby(actions, key=type):
        row = tuple(run)
        found += [row] if kind in _INDEPENDENT else [(action,) for action in row]
    return tuple(found)
