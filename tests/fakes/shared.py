"""Several jobs on the same nodes: one scheduler, which binds waiting pods in any order.

What each job sees of the others is what the operator's own rule makes of all pods.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.inventory.requests import GpuAllocation, gpus_held
from heddle_operator.ports.arbiter import Arbiter
from heddle_operator.state.actions import CreatePod
from heddle_operator.state.snapshot import Headroom, Observed, ObservedPod
from tests.fakes.cluster import FakeCluster
from tests.fakes.operator import FakeOperator

UNSCHEDULABLE = "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu"


class SharedCluster(FakeCluster):
    """One job's part of nodes that others use too."""

    def __init__(self, job: HeddleJob, around: SharedNodes) -> None:
        super().__init__(job.name, job.workload)
        self.around = around
        self.bound: set[str] = set()

    def snapshot(self) -> Observed:
        seen = super().snapshot()
        held = gpus_held(self.around.allocations(), ("", self.job))
        nodes = []
        for node in seen.nodes:
            free = max(0, node.gpus - held.get(node.name, (0, 0))[1])
            nodes.append(replace(node, gpus=free, lent=node.gpus - free))
        priority, quota = self.around.priorities.get(self.job, 0), self.around.quotas.get(self.job)
        room = Headroom() if quota is None else Headroom(quota - self._gpus(), None, "quota q")
        return replace(seen, nodes=tuple(nodes), priority=priority, headroom=room)

    def _gpus(self) -> int:
        return sum(pod.gpus for pod in self.pods.values() if pod.phase != "ended")

    def _create(self, action: CreatePod) -> None:
        super()._create(action)
        quota = self.around.quotas.get(self.job, math.inf)
        assert self._gpus() <= quota, f"{action.name} is beyond the quota of {quota} GPUs"

    def _is_kept_from_starting(self, pod: ObservedPod) -> bool:
        return pod.name not in self.bound or super()._is_kept_from_starting(pod)


class SharedNodes:
    """Nodes of several jobs.

    Args:
        jobs: with names and uids of their own.
        gpus: of each node, by name.
        seed: of the scheduler's order, and of the operators'.
        priorities: of the jobs, by name.
        arbiter: divides the GPUs among them; None: nobody does.
        quotas: GPUs that a job's namespace may have, by the job's name.
        types: of the GPUs of nodes, by name; demo-fast where none is said.
        unseen: GPUs by node that pods of other namespaces hold, which no operator here sees.
    """

    def __init__(
        self,
        jobs: list[HeddleJob],
        gpus: dict[str, int],
        seed: int,
        priorities: Mapping[str, int] | None = None,
        arbiter: Arbiter | None = None,
        unseen: Mapping[str, int] | None = None,
        quotas: Mapping[str, int] | None = None,
        types: Mapping[str, str] | None = None,
    ) -> None:
        self.gpus = gpus
        self.types = types or {}
        self.unseen = dict(unseen or {})
        self.quotas = quotas or {}
        self.random = random.Random(seed)
        self.now = 0.0
        self.priorities = priorities or {}
        self.arbiter = arbiter
        self.clusters: list[SharedCluster] = []
        self.operators: list[FakeOperator] = []
        for job in jobs:
            self.add_job(job)

    def add_job(self, job: HeddleJob) -> None:
        """A job is created."""
        cluster = SharedCluster(job, self)
        cluster.now = self.now
        for name, count in self.gpus.items():
            cluster.add_node(name, self.types.get(name, "demo-fast"), count)
        self.clusters.append(cluster)
        self.operators.append(FakeOperator(job, cluster, arbiter=self.arbiter))

    def add_nodes(self, gpus: Mapping[str, int]) -> None:
        """Nodes join."""
        for name, count in gpus.items():
            self.gpus[name] = count
            for cluster in self.clusters:
                cluster.add_node(name, self.types.get(name, "demo-fast"), count)

    def allocations(self) -> list[GpuAllocation]:
        """What all pods hold or claim."""
        return [
            GpuAllocation(
                node=pod.node,
                gpus=pod.gpus,
                owner_uid=cluster.job,
                is_bound=pod.name in cluster.bound,
            )
            for cluster in self.clusters
            for pod in cluster.pods.values()
            if pod.phase != "ended"
        ]

    def advance(self, seconds: float) -> None:
        """One pass of each operator, then of the scheduler, then some time."""
        for operator in self.random.sample(self.operators, len(self.operators)):
            operator.reconcile()
        self._schedule()
        for cluster in self.clusters:
            cluster.tick(seconds)
        self.now += seconds

    def held(self, job: str) -> int:
        """GPUs that pods of a job hold or claim."""
        return sum(row.gpus for row in self.allocations() if row.owner_uid == job)

    def _schedule(self) -> None:
        for cluster in self.clusters:
            cluster.bound &= set(cluster.pods)
        waiting = [
            (cluster, pod)
            for cluster in self.clusters
            for pod in cluster.pods.values()
            if pod.name not in cluster.bound
        ]
        for cluster, pod in self.random.sample(waiting, len(waiting)):
            taken = sum(
                row.gpus for row in self.allocations() if row.is_bound and row.node == pod.node
            )
            if taken + self.unseen.get(pod.node, 0) + pod.gpus <= self.gpus[pod.node]:
                cluster.bound.add(pod.name)
                cluster.pods[pod.name] = replace(pod, problem="")
            else:
                cluster.pods[pod.name] = replace(pod, problem=UNSCHEDULABLE, cause="scheduling")
