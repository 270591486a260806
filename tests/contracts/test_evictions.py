"""The eviction API of a real API server, before the budgets of a job: one pod at a time goes."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.kube.client import ApiRefused
from heddle_operator.kube.owned_objects import JobObjects
from heddle_operator.rules.drain import Drain
from heddle_operator.state.actions import CreatePod
from planner.cluster.composition import Composition, Node
from tests.fakes.kubernetes import a_kubernetes
from tests.fakes.operator import a_job

pytestmark = pytest.mark.slow

JOB = a_job(yieldToAutoscaler=True)
NODES = Composition(tuple(Node(name=name, gpu_type="demo-fast", gpus=1) for name in "abc"))
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


class Pods:
    """The pods of the job, and who asks for their eviction."""

    def __init__(self, cluster, wait):
        self.cluster, self.wait = cluster, wait
        namespace = cluster.kube.job.metadata.namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self.budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"

    async def start(self):
        """One on each node, which runs and is ready."""
        for node in "abc":
            await self.cluster.apply(CreatePod(f"tiny-{node}-0", node, 0, 1))
        while {pod.phase for pod in (await self.cluster.observe()).pods} != {"running"}:
            await self.wait(None)
        for pod in await self.all():
            await self.cluster.api.patch(
                f"{self.path}/{pod['metadata']['name']}/status", {"status": READY}
            )

    async def all(self):
        return (await self.cluster.api.get(self.path))["items"]

    async def settled(self):
        """Wait until the disruption controller has seen the budgets and their pods."""
        while True:
            rows = (await self.cluster.api.get(self.budgets))["items"]
            if all(_is_settled(row) for row in rows):
                return {r["metadata"]["name"]: r["status"]["disruptionsAllowed"] for r in rows}
            await self.wait(None)

    async def evict(self, name):
        """The status of the answer."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name},
            "deleteOptions": {"gracePeriodSeconds": 60},
        }
        try:
            await self.cluster.api.create(f"{self.path}/{name}/eviction", body)
        except ApiRefused as error:
            return error.status
        return 201


def _is_settled(budget):
    status, spec = budget.get("status", {}), budget["spec"]
    is_seen = status.get("observedGeneration") == budget["metadata"]["generation"]
    return is_seen and status.get("desiredHealthy") == spec["minAvailable"]


async def until_allowed(pods, wanted):
    """Wait until the budgets allow so many evictions."""
    while (found := await pods.settled()) != wanted:
        await pods.wait(None)
    return found


def test_one_pod_at_a_time_is_yielded_and_no_protected_one(control_plane):
    async def main():
        async with a_kubernetes(control_plane, JOB, NODES) as (cluster, wait, _):
            pods = Pods(cluster, wait)
            await pods.start()
            objects = JobObjects(cluster.kube.job, cluster.api)
            drain = Drain(yielded=frozenset({"tiny-a-0", "tiny-b-0"}))
            for _ in range(2):  # what the budgets keep, then whom they cover, then no more
                await objects.write_budgets(await pods.all(), drain)
            await until_allowed(pods, {"tiny": 0, "tiny-yield": 1})
            assert await pods.evict("tiny-c-0") == 429
            assert await pods.evict("tiny-a-0") == 201
            assert await pods.evict("tiny-b-0") == 429
            await objects.write_budgets(await pods.all(), Drain())
            await pods.settled()
            for name in ("tiny-b-0", "tiny-c-0"):
                assert await pods.evict(name) == 429
            await objects.write_budgets(await pods.all(), Drain())
            await until_allowed(pods, {"tiny": 0, "tiny-yield": 0})

    asyncio.run(asyncio.wait_for(main(), 90))
