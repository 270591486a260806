"""The operator over the fake cluster, pass by pass, and the objects that its tests start from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from heddle_operator.apis.errors import ClusterConflict
from heddle_operator.apis.heddlejob import HeddleJob, load_job
from heddle_operator.controller.node_speeds import NodeSpeeds
from heddle_operator.controller.reconciler import reached_step, recovers_since, with_allowance
from heddle_operator.epochs.decide import decide
from heddle_operator.ports.arbiter import Arbiter
from heddle_operator.rules.arbitration.demand import Demand
from heddle_operator.state.actions import RecordEvent
from heddle_operator.state.decision import Decision
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import Situation, View
from heddle_operator.state.snapshot import Observed
from heddle_operator.state.worth import NodeSizes
from planner.cluster.composition import Composition
from planner.plans.plan import Plan
from tests.fakes.cluster import FakeCluster
from worker.contract import Report

DEFAULTS = Settings()
NO_NODES = Composition(())


class FakeOperator:
    """The loop without effects: observe, decide, apply."""

    def __init__(
        self,
        job: HeddleJob,
        cluster: FakeCluster,
        settings: Settings = DEFAULTS,
        arbiter: Arbiter | None = None,
        speeds: NodeSpeeds | None = None,
    ) -> None:
        self.job = job
        self.cluster = cluster
        self.settings = settings
        self.arbiter = arbiter
        self.speeds = speeds
        self.decision = Decision(actions=(), phase="Pending", message="")
        self.recovering_since_s: float | None = None
        self.reached_step: int | None = None

    def reconcile(self) -> Decision:
        """One pass; a lost race is forgotten, as the next pass sees it."""
        cluster = self.cluster
        seen = replace(cluster.snapshot(), recovering_since_s=self.recovering_since_s)
        self.reached_step = reached_step(seen.agents.values(), self.reached_step)
        seen = replace(seen, reached_step=self.reached_step)
        if self.speeds is not None:
            seen = self.speeds.seen(seen, cluster.now)
        view = View.of(self.job, seen, cluster.now, self.settings)
        if self.arbiter is not None:
            view = with_allowance(self.arbiter, view, cluster.weigh)
        self.decision = decide(view)
        self.recovering_since_s = recovers_since(
            self.decision, self.recovering_since_s, cluster.now
        )
        for action in self.decision.actions:
            with contextlib.suppress(ClusterConflict):
                cluster.do(action)
        return self.decision

    def run(self, until: Callable[[Decision], bool], passes: int = 60) -> Decision:
        """Pass and tick until the decision is as wanted."""
        for _ in range(passes):
            if until(self.reconcile()):
                return self.decision
            self.cluster.tick()
        raise AssertionError(
            f"after {passes} passes: {self.decision.phase}, {self.decision.message}"
        )

    def settle(self, passes: int = 60) -> Decision:
        """Pass and tick until nothing is left to do and no time-out is near."""
        quiet = 0
        for _ in range(passes):
            busy = [a for a in self.reconcile().actions if not isinstance(a, RecordEvent)]
            quiet = 0 if busy else quiet + 1
            if quiet >= 4 and self.decision.phase in ("Running", "Complete", "Failed"):
                return self.decision
            self.cluster.tick()
        raise AssertionError(f"not settled: {self.decision.phase}, {self.decision.message}")


def view_of(
    job: HeddleJob,
    observed: Observed,
    now: float = 0.0,
    situation: Situation | None = None,
    settings: Settings = DEFAULTS,
) -> View:
    """A look at a picture; `situation` replaces the one that the picture shows."""
    view = View.of(job, observed, now, settings)
    return view if situation is None else replace(view, situation=situation)


def a_job(**elastic: object) -> HeddleJob:
    """A job on the tiny model that follows the cluster at once, unless told otherwise."""
    wishes = {"joinDebounceSeconds": 0, "cooldownSeconds": 0, **elastic}
    return load_job(
        {
            "apiVersion": "heddle.dev/v1alpha1",
            "kind": "HeddleJob",
            "metadata": {"name": "tiny"},
            "spec": {
                "model": {"name": "tiny-llama"},
                "data": {"builtin": "text"},
                "training": {"globalBatch": 32, "sequenceLength": 128},
                "steps": 1000,
                "elastic": wishes,
            },
        }
    )


def a_cluster(job: HeddleJob, *nodes: str, as_pipeline: bool = False) -> FakeCluster:
    """A cluster with nodes of one GPU each."""
    cluster = FakeCluster(job.name, job.workload, as_pipeline)
    for node in nodes:
        cluster.add_node(node)
    return cluster


def waiting(*nodes: str, as_pipeline: bool = False, **elastic: object) -> FakeOperator:
    """The operator of a job that is to train on these nodes, before its first pass."""
    job = a_job(**elastic)
    return FakeOperator(job, a_cluster(job, *nodes, as_pipeline=as_pipeline))


def running(*nodes: str, as_pipeline: bool = False, **elastic: object) -> FakeOperator:
    """The operator of a job that trains on these nodes."""
    operator = waiting(*nodes, as_pipeline=as_pipeline, **elastic)
    operator.settle()
    return operator


def running_on(
    *nodes: str, as_pipeline: bool = False, **elastic: object
) -> tuple[FakeOperator, FakeCluster]:
    """The same operator with its cluster."""
    operator = running(*nodes, as_pipeline=as_pipeline, **elastic)
    return operator, operator.cluster


def a_demand(job: str, nodes: NodeSizes, most: int, **others: Any) -> Demand:
    """Of a job that needs one GPU, and is as urgent and as old as the others."""
    least = {"priority": 0, "since": "", "least": 1, "weight": 1.0}
    return Demand(job=job, nodes=nodes, most=most, **(least | others))


def a_record(
    plan: Plan, composition: Composition = NO_NODES, epoch: int = 1, **others: Any
) -> EpochRecord:
    """Of an epoch that began the job at 0 s, unless told otherwise."""
    first = {"reason": "start", "adopted_s": 0.0}
    return EpochRecord(plan=plan, composition=composition, epoch=epoch, **(first | others))


def a_report(**others: Any) -> Report:
    """Of an agent that is ready, on pod p of node a of the job of `a_job`."""
    ready = {
        "job": "tiny", "pod": "p", "node": "a", "version": 1, "agent_pid": 1,
        "agent_started_s": 0.0, "ready": True,
    }  # fmt: skip
    return Report(**(ready | others))
