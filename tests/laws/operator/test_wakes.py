"""A thousand nodes and fifty jobs: a change wakes the jobs that it concerns, and costs little.

The cache and the adapters of an operator, over an API server in memory; what a watch tells goes
into the cache as it does there.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from heddle_operator.apis.heddlejob import Metadata
from heddle_operator.controller.node_speeds import NodeSpeeds
from heddle_operator.inventory.requests import GPU
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import connect
from heddle_operator.kube.kubernetes_cluster import GROWTH_PAUSE_S, KubeCluster
from heddle_operator.ports.trigger import Trigger
from heddle_operator.resources.pods import WorkerDefaults
from tests.fakes.api_server import an_api_server
from tests.fakes.operator import a_job

NODES, JOBS, CHANGES, SECONDS = 1000, 50, 100, 10.0
GROWING = 10  # of the jobs; the others have all GPUs that they may have
GPUS = 8


def a_node(name, version, label="", ready="True", since=0):
    resources = {GPU: str(GPUS), "cpu": "64", "memory": "512Gi", "pods": "110"}
    since = f"2026-01-01T00:00:{since % 60:02}Z"
    labels = {"heddle.dev/gpu-type": "demo-fast", "example.com/tick": label}
    conditions = [
        {"type": "Ready", "status": ready, "lastTransitionTime": since},
        *({"type": kind, "status": "False"} for kind in ("MemoryPressure", "DiskPressure")),
    ]
    return {
        "metadata": {
            "name": name, "uid": name, "resourceVersion": str(version), "labels": labels,
        },
        "status": {"capacity": resources, "allocatable": resources, "conditions": conditions},
    }  # fmt: skip


def a_pod(name, node, version, job="", phase="Running"):
    """A pod of somebody with a GPU, or one of a job with all of the node."""
    owned = {
        "labels": {"heddle.dev/job": job},
        "ownerReferences": [{"uid": job, "controller": True}],
        "annotations": {"heddle.dev/node": node, "heddle.dev/ordinal": "0"},
    }
    asked = {"requests": {GPU: str(GPUS if job else 1), "cpu": "2"}}
    return {
        "metadata": {
            "name": name, "uid": name, "namespace": "ns", "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z", **(owned if job else {}),
        },
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": asked}]},
        "status": {"phase": phase},
    }  # fmt: skip


class Job:
    """The adapter of one job, and how often it was woken."""

    def __init__(self, number, api, cache):
        elastic = {} if number < GROWING else {"maxGPUs": 2 * GPUS}
        uid = f"job-{number}"
        job = a_job(**elastic)
        metadata = Metadata(name=uid, namespace="ns", uid=uid)
        self.trigger, self.speeds = Trigger(), NodeSpeeds(job.workload.model)
        self.nodes = [f"n{2 * number + i:04}" for i in range(2)]
        for node in self.nodes:
            cache.put("Pod", a_pod(f"{uid}-{node}", node, 1, uid))
        self.adapter = KubeCluster(
            job.model_copy(update={"metadata": metadata}), api, cache,
            WorkerDefaults(image="heddle:1", template={}), ("demo-fast",), self.trigger, "secret",
        )  # fmt: skip

    async def look(self):
        return self.speeds.seen(await self.adapter.observe(), time.monotonic())

    async def is_woken(self, timeout_s=0.0):
        return await self.trigger.wait(timeout_s)


class World:
    """The cache of an operator, and its jobs."""

    def __init__(self, api):
        self.version = 1
        self.cache = ObjectCache()
        for number in range(NODES):
            self.cache.put_node(a_node(f"n{number:04}", 1))
        self.jobs = [Job(number, api, self.cache) for number in range(JOBS)]

    def label(self, name):
        self.version += 1
        self.cache.put_node(a_node(name, self.version, label=str(self.version)))

    def stranger(self, name):
        self.version += 1
        phase = "Running" if self.version % 2 else "Succeeded"
        self.cache.put("Pod", a_pod(f"stranger-{name}", name, self.version, phase=phase))

    def readiness(self, name):
        self.version += 1
        ready = "True" if self.version % 2 else "False"
        self.cache.put_node(a_node(name, self.version, ready=ready, since=self.version))

    async def woken(self):
        return {number for number, job in enumerate(self.jobs) if await job.is_woken()}


def run(tmp_path, test):
    async def main():
        async with (
            an_api_server() as server,
            await connect(server.kubeconfig(tmp_path)) as api,
        ):
            world = World(api)
            try:
                for job in world.jobs:
                    assert len((await job.look()).nodes) == NODES
                await world.woken()  # by what refused trial pods taught
                await test(world)
            finally:
                await asyncio.gather(*(job.adapter.close() for job in world.jobs))

    asyncio.run(main())


def test_a_change_wakes_the_job_that_holds_the_node_and_soon_those_that_may_grow(tmp_path):
    async def test(world):
        world.label("n0050")
        assert await world.woken() == set()
        world.readiness("n0050")  # job 25 holds it
        assert await world.woken() == {25}
        world.stranger("n0900")
        for job in world.jobs[:GROWING]:
            assert await job.is_woken(20)
            assert len((await job.look()).nodes) == NODES
        assert await world.woken() == set()
        world.label("n0900")
        asyncio.get_running_loop().call_later(2 * GROWTH_PAUSE_S, world.jobs[0].trigger.set)
        await world.jobs[0].is_woken(20)
        assert await world.woken() == set()

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("change", "goal_s"),
    [(World.label, 0.1), (World.stranger, 2.0), (World.readiness, 2.0)],
    ids=["a label that nobody reads", "pods of others", "readiness"],
)
def test_a_hundred_changes_cost_little(tmp_path, change, goal_s):
    """Those that may grow look as often as they do within 10 s; the others are not woken."""

    async def test(world):
        looks = round(SECONDS / GROWTH_PAUSE_S)
        began_s = time.thread_time()
        for burst in range(looks):
            for number in range(CHANGES // looks):
                change(world, f"n{500 + (burst * CHANGES // looks + number) // 2:04}")
            for job in world.jobs[:GROWING] if change is not World.label else ():
                await job.look()
        spent_s = time.thread_time() - began_s
        assert not {number for number in await world.woken() if number >= GROWING}
        assert spent_s < 3 * goal_s

    run(tmp_path, test)
