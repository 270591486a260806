"""Parts with which a job is followed: agents, planner, cluster and loop.

Invariant: it decides nothing by itself and writes nothing; so it may outlive a Lease that was lost,
and what it has heard stays warm until the operator leads again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from heddle_operator.controller.agents import Agents
from heddle_operator.controller.arbiter import PriorityArbiter
from heddle_operator.controller.effective_spec import EffectiveSpec, gpu_types_of
from heddle_operator.controller.node_speeds import NodeSpeeds
from heddle_operator.controller.planner_client import PlannerClient, search_settings_of
from heddle_operator.controller.planner_pool import PlannerPool
from heddle_operator.controller.reconciler import Reconciler
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import KubeApi
from heddle_operator.kube.kubernetes_cluster import KubeCluster
from heddle_operator.kube.owned_objects import JobObjects
from heddle_operator.ports.cluster import Cluster
from heddle_operator.ports.held_pods import HeldPods
from heddle_operator.ports.trigger import Trigger
from heddle_operator.ports.turns import Turns
from heddle_operator.resources.pods import WorkerDefaults, with_data_folder
from heddle_operator.state.actions import RecordEvent
from heddle_operator.state.decision import Decision
from heddle_operator.state.settings import Settings
from heddle_operator.state.snapshot import Observed
from heddle_operator.telemetry.metrics import OperatorMetrics
from planner.profiles.chosen import choose_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """Parts that all jobs of an operator share.

    Attributes:
        left_s: seconds in which this operator may still tell agents anything.
        pool: of planners; None: each job has a process of its own.
        arbiter: divides GPUs among the jobs.
        turns: of the loop; each pass of a job has one.
        sees_all_pods: no GPU is held unseen.
        identity: of this operator, for Events.
    """

    api: KubeApi
    cache: ObjectCache
    defaults: WorkerDefaults
    settings: Settings
    metrics: OperatorMetrics
    left_s: Callable[[], float] = lambda: math.inf
    pool: PlannerPool | None = None
    arbiter: PriorityArbiter = field(default_factory=PriorityArbiter)
    turns: Turns = field(default_factory=Turns)
    sees_all_pods: bool = True
    identity: str = "heddle-operator"


class JobWork:
    """The parts of one job that remember something.

    Args:
        effective: the spec by which the job is followed.
        token: of the job.
        objects: that the job owns beside its pods and records.
        context: what all jobs share.
        trigger: set on whatever changes.
        on_decision: gets each decision.
        stalls_s: measured stalls of planned moves.
        on_event: gets what is to be told.
    """

    def __init__(
        self,
        effective: EffectiveSpec,
        token: str,
        objects: JobObjects,
        context: ControllerContext,
        trigger: Trigger,
        *,
        on_decision: Callable[[Decision, Observed, float], None],
        stalls_s: Callable[[], tuple[float, ...]],
        on_event: Callable[[RecordEvent], None],
    ) -> None:
        job = effective.job
        self.effective = effective
        self.objects = objects
        self._agents = Agents(
            token,
            trigger,
            context.settings.report_wait_s,
            peer_timeout_s=job.spec.elastic.peer_timeout_seconds,
            left_s=context.left_s,
        )
        self._planner = PlannerClient(
            search_settings_of(job, context.settings),
            trigger,
            pool=context.pool,
            job=job.metadata.uid,
            planned=context.metrics.planned,
        )
        self._cluster = KubeCluster(
            job,
            context.api,
            context.cache,
            context.defaults,
            gpu_types_of(job, context.settings),
            trigger,
            token,
            context.arbiter.jobs,
        )
        cluster: Cluster = self._cluster
        if effective.no_pods:
            cluster = HeldPods(cluster, effective.no_pods, trigger)
        folder = context.settings.profiles_folder
        profile = choose_profile(job.workload, folder).profile
        self.reconciler = Reconciler(
            with_data_folder(job),
            cluster,
            self._agents,
            self._planner,
            trigger,
            context.settings,
            on_decision=on_decision,
            stalls_s=stalls_s,
            on_event=on_event,
            arbiter=context.arbiter,
            speeds=NodeSpeeds(job.workload.model, profile),
        )

    async def close(self, is_gone: bool) -> None:
        """Hear nothing more.

        Args:
            is_gone: the job was deleted: its pods are told not to train on.
        """
        if is_gone:
            await self._agents.end_all()
        await self._agents.close()
        await self._planner.close()
        await self._cluster.close()
