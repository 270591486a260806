"""The Kubernetes adapter over an API server in memory, looked at by lists."""

from __future__ import annotations

import asyncio

from heddle_operator.apis.heddlejob import Metadata
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import connect
from heddle_operator.kube.kubernetes_cluster import KubeCluster
from heddle_operator.ports.trigger import Trigger
from heddle_operator.resources.pods import WorkerDefaults
from heddle_operator.state.actions import AdoptPlan
from planner.cluster.composition import Composition, Node
from tests.fakes.api_server import an_api_server
from tests.fakes.lists import relist
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan

NODES = Composition((Node(name="a", gpu_type="demo-fast", gpus=2),))
PLAN = fake_plan(NODES, a_job().workload)
ADOPT = AdoptPlan(epoch=1, plan=PLAN, reason="start", composition=NODES)
TOKEN = "secret"


class Around:
    """An adapter over an API server in memory, looked at by lists."""

    def __init__(self, server, api, **spec):
        job = a_job()
        metadata = Metadata(name="tiny", namespace="ns", uid="job")
        job = job.model_copy(
            update={"metadata": metadata, "spec": job.spec.model_copy(update=spec)}
        )
        self.server, self.api, self.cache, self.trigger = server, api, ObjectCache(), Trigger()
        self.defaults = WorkerDefaults(image="heddle:1", template={})
        self._adapters = []
        self.adapter = self.another(job)

    def another(self, job=None):
        """A further operator, with a cache of its own."""
        cache = ObjectCache() if job is None else self.cache
        job = job or self.adapter.job
        types = ("demo-fast",)
        made = KubeCluster(job, self.api, cache, self.defaults, types, self.trigger, TOKEN)
        self._adapters.append(made)
        return made

    async def close(self):
        for adapter in self._adapters:
            await adapter.close()

    async def node(self, name="a", gpus=2, **spec):
        resources = {"nvidia.com/gpu": str(gpus)}
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        await self.server.put(
            f"/api/v1/nodes/{name}",
            {
                "metadata": {"labels": {"heddle.dev/gpu-type": "demo-fast"}},
                "spec": spec,
                "status": {
                    "capacity": resources, "allocatable": resources, "conditions": [ready],
                },
            },
        )  # fmt: skip

    async def observe(self):
        await relist(self.api, self.cache)
        return await self.adapter.observe()


def runner(tmp_path):
    """Runs a test with what is around an adapter."""

    def run(test, **spec):
        async def main():
            async with (
                an_api_server() as server,
                await connect(server.kubeconfig(tmp_path)) as api,
            ):
                around = Around(server, api, **spec)
                try:
                    await asyncio.wait_for(test(around, server), 20)
                finally:
                    await around.close()

        asyncio.run(main())

    return run
