"""The Kubernetes adapter as the contract suite drives it: a real API server, stubbed kubelets."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import ApiRefused, connect
from heddle_operator.kube.kubernetes_cluster import KubeCluster
from heddle_operator.ports.cluster import ClusterAction
from heddle_operator.ports.trigger import Trigger
from heddle_operator.resources.pods import WorkerDefaults
from heddle_operator.state.actions import DeletePod
from heddle_operator.state.snapshot import Observed
from planner.cluster.composition import Composition
from tests.cluster.cluster import Cluster
from tests.fakes.kubelet import Kubelets
from tests.fakes.lists import relist

JOBS = "/apis/heddle.dev/v1alpha1"
WAIT_S = 0.05
BEAT_S = 2.0  # a node without a word counts as lost after eight
NOW = ("--force", "--grace-period=0")


class KubernetesUnderTest:
    """The adapter, fed by whole lists instead of watches."""

    def __init__(
        self, kube: KubeCluster, cache: ObjectCache, kubelets: Kubelets, plane: Cluster, api: Any
    ) -> None:
        self.kube = kube
        self.api = api
        self._cache = cache
        self._kubelets = kubelets
        self._plane = plane

    async def observe(self) -> Observed:
        await self._kubelets.work()
        await relist(self.api, self._cache)
        return await self.kube.observe()

    async def apply(self, action: ClusterAction) -> None:
        if isinstance(action, DeletePod):
            await relist(self.api, self._cache)
        await self.kube.apply(action)

    def drain(self, node: str) -> None:
        self._plane.kubectl("annotate", "node", node, "heddle.dev/draining=test")

    def kill_node(self, node: str) -> None:
        namespace = self.kube.job.metadata.namespace
        self._plane.kubectl("delete", "node", node)
        self._plane.kubectl("delete", "pods", "--all", *NOW, "--namespace", namespace)


@contextlib.asynccontextmanager
async def a_kubernetes(
    plane: Cluster, job: HeddleJob, nodes: Composition
) -> AsyncIterator[
    tuple[KubernetesUnderTest, Callable[[float | None], Awaitable[bool]], Callable[[], None]]
]:
    """The adapter for a job of its own in a namespace of its own, on nodes of its own."""
    namespace = f"test-{secrets.token_hex(4)}"
    async with await connect(kubeconfig=plane.kubeconfig) as api:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        await api.create("/api/v1/namespaces", body)
        spec = job.model_dump(by_alias=True, mode="json", exclude_none=True)["spec"]
        made = await api.create(
            f"{JOBS}/namespaces/{namespace}/heddlejobs",
            {
                "apiVersion": "heddle.dev/v1alpha1",
                "kind": "HeddleJob",
                "metadata": {"name": job.name},
                "spec": spec,
            },
        )
        kubelets, trigger = Kubelets(api, namespace), Trigger()
        for node in nodes.nodes:
            await kubelets.join(node)
        mine = job.metadata.model_copy(
            update={"namespace": namespace, "uid": made["metadata"]["uid"]}
        )
        cache = ObjectCache()
        kube = KubeCluster(
            job.model_copy(update={"metadata": mine}),
            api,
            cache,
            WorkerDefaults(image="localhost/none", template={}),
            tuple(nodes.gpu_types),
            trigger,
            "secret",
        )
        plane.kubectl("wait", "--for=create", "serviceaccount/default", "--namespace", namespace)

        beats = asyncio.create_task(_beat(kubelets, nodes), name="beats of nodes")

        async def wait(_: float | None) -> bool:
            return await trigger.wait(WAIT_S)

        try:
            yield KubernetesUnderTest(kube, cache, kubelets, plane, api), wait, lambda: None
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
            await kube.close()
            plane.kubectl("delete", "pods", "--all", *NOW, "--namespace", namespace)
            await api.call("DELETE", f"/api/v1/namespaces/{namespace}", None)
            for node in nodes.nodes:
                plane.kubectl("delete", "node", node.name, "--ignore-not-found")


async def _beat(kubelets: Kubelets, nodes: Composition) -> None:
    """Keep nodes ready that nobody has deleted, however long a test takes."""
    while True:
        await asyncio.sleep(BEAT_S)
        for node in nodes.nodes:
            with contextlib.suppress(ApiRefused):
                await kubelets.beat(node)
