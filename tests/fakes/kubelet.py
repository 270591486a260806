"""Nodes without machines on a real API server: what kubelets would report is written by hand.

It cannot do what a kubelet cannot: a pod runs only where the scheduler put it, and is gone only
after it was deleted.
"""

from __future__ import annotations

from datetime import UTC, datetime

from heddle_operator.kube.client import Body, KubeApi
from planner.cluster.composition import Node


class Kubelets:
    """The kubelets of all nodes that were joined."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._ready_since: dict[str, str] = {}

    async def join(self, node: Node) -> None:
        """Register a node and say that it is ready."""
        labels = {"heddle.dev/gpu-type": node.gpu_type, "kubernetes.io/hostname": node.name}
        body: Body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}}
        body["metadata"]["labels"] = labels
        await self._api.create("/api/v1/nodes", body)
        await self.beat(node)

    async def beat(self, node: Node) -> None:
        """Say that a node is ready: without a word for some seconds it counts as lost."""
        resources = {"nvidia.com/gpu": str(node.gpus), "cpu": "4", "memory": "8Gi", "pods": "110"}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
            "lastHeartbeatTime": now,
            "lastTransitionTime": self._ready_since.setdefault(node.name, now),
        }  # fmt: skip
        status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
        await self._api.patch(f"/api/v1/nodes/{node.name}/status", {"status": status})

    async def work(self) -> None:
        """Run what was scheduled, and end what was deleted."""
        for pod in (await self._api.get(self._pods))["items"]:
            name = pod["metadata"]["name"]
            if pod["metadata"].get("deletionTimestamp"):
                await self._api.delete(f"{self._pods}/{name}", pod["metadata"]["uid"], 0)
            elif pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
                status = {"phase": "Running", "podIP": "127.0.0.1"}
                await self._api.patch(f"{self._pods}/{name}/status", {"status": status})
