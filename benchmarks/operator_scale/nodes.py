"""Nodes without kubelets, and the pods of others on them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from benchmarks.operator_scale.sizes import GPUS, Sizes
from heddle_operator.kube.client import Body, KubeApi

NAMESPACES = ("others", "team-a", "team-b")
AT_ONCE = 24  # requests
LABELS, IMAGES = 20, 30  # of others, which make a node as long as nodes are
_SINCE = "2026-01-01T00:00:00Z"


def node_name(index: int) -> str:
    """Names in the order of the numbers."""
    return f"node-{index:05d}"


def path_of(index: int) -> str:
    """Path of a node."""
    return f"/api/v1/nodes/{node_name(index)}"


def ready(is_ready: bool = True) -> list[Body]:
    """The conditions of a node that is ready, or whose kubelet is silent."""
    well = {"Ready": "True" if is_ready else "Unknown"}
    well |= dict.fromkeys(("MemoryPressure", "DiskPressure", "PIDPressure"), "False")
    times = {"lastHeartbeatTime": _SINCE, "lastTransitionTime": _SINCE}
    return [
        {"type": kind, "status": status, "reason": "x", "message": "", **times}
        for kind, status in well.items()
    ]


def gpu_pod(name: str, node: int) -> Body:
    """A pod of somebody else that holds a GPU."""
    return _foreign_pod(name, node, {"limits": {"nvidia.com/gpu": "1"}})


def foreign_pod_path(name: str = "") -> str:
    """Path of the pods of others, or of one."""
    return f"/api/v1/namespaces/{NAMESPACES[0]}/pods" + (f"/{name}" if name else "")


async def all_done(work: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Do it all, some of it at once."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(each: Coroutine[Any, Any, Any]) -> None:
        async with turns:
            await each

    await asyncio.gather(*map(one, work))


async def create_all(api: KubeApi, sizes: Sizes) -> None:
    """Create namespaces, nodes and the pods of others."""
    for name in NAMESPACES:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await api.create("/api/v1/namespaces", body)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        await api.create(f"/api/v1/namespaces/{name}/serviceaccounts", account)
    await all_done(_join(api, index) for index in range(sizes.nodes))
    await all_done(
        api.create(foreign_pod_path(), _foreign_pod(f"p-{index:05d}", index % sizes.nodes, {}))
        for index in range(sizes.foreign_pods)
    )


async def _join(api: KubeApi, index: int) -> None:
    name = node_name(index)
    labels = {"heddle.dev/gpu-type": "demo-fast", "kubernetes.io/hostname": name}
    labels |= {f"example.com/label-{number}": "x" * 20 for number in range(LABELS)}
    head = {"apiVersion": "v1", "kind": "Node"}
    await api.create("/api/v1/nodes", {**head, "metadata": {"name": name, "labels": labels}})
    # The API server taints a new node until a controller finds it ready; none runs here.
    await api.patch(path_of(index), {"spec": {"taints": None}})
    room = {"nvidia.com/gpu": str(GPUS), "cpu": "96", "memory": "1000Gi", "pods": "250"}
    images = [
        {"names": [f"registry.example/{number}@sha256:{'a' * 64}"], "sizeBytes": 1}
        for number in range(IMAGES)
    ]
    status = {"capacity": room, "allocatable": room, "conditions": ready(), "images": images}
    await api.patch(f"{path_of(index)}/status", {"status": status})


def _foreign_pod(name: str, node: int, resources: Body) -> Body:
    container = {"name": "c", "image": "x", "resources": resources}
    spec = {"nodeName": node_name(node), "tolerations": [{"operator": "Exists"}]}
    metadata = {"name": name, "labels": {"app": "x"}}
    spec |= {"containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
