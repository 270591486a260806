"""Kubelets and scheduler of all worker pods: a pod runs as soon as it is there, and ends when told.

It follows a watch, so that thousands of pods cost it nothing while they stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools

from benchmarks.operator_scale.agents import AgentServer, PodAgent
from heddle_operator.apis.labels import JOB_LABEL, NODE_ANNOTATION
from heddle_operator.kube.client import ApiRefused, Body, KubeApi

AT_ONCE = 16
WATCH_S = 500


class PodKubelets:
    """Runs the worker pods of all jobs."""

    def __init__(self, api: KubeApi, server: AgentServer) -> None:
        self.writes = 0
        self._api = api
        self._server = server
        self._addresses: dict[str, str] = {}
        self._numbers = itertools.count()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._working: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follow the pods until this is cancelled."""
        while True:
            with contextlib.suppress(ApiRefused):
                found = await self._api.get("/api/v1/pods", labelSelector=JOB_LABEL)
                for pod in found["items"]:
                    self._take(pod)
                query = {
                    "labelSelector": JOB_LABEL,
                    "resourceVersion": found["metadata"]["resourceVersion"],
                    "timeoutSeconds": str(WATCH_S),
                }
                async for event in self._api.watch("/api/v1/pods", WATCH_S + 100.0, **query):
                    if event["type"] == "DELETED":
                        self._forget(event["object"]["metadata"]["uid"])
                    elif event["type"] in ("ADDED", "MODIFIED"):
                        self._take(event["object"])
            await asyncio.sleep(0.1)

    def cut(self, uid: str) -> None:
        """The agent of a pod answers no more."""
        self._forget(uid)

    def _take(self, pod: Body) -> None:
        task = asyncio.create_task(self._do(pod))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    def _forget(self, uid: str) -> None:
        self._server.agents.pop(self._addresses.pop(uid, ""), None)

    async def _do(self, pod: Body) -> None:
        metadata = pod["metadata"]
        uid, name = metadata["uid"], metadata["name"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{name}"
        async with self._turns:
            with contextlib.suppress(ApiRefused):
                if metadata.get("deletionTimestamp"):
                    self._forget(uid)
                    self.writes += 1
                    await self._api.delete(path, uid, 0)
                elif uid not in self._addresses and not pod["spec"].get("nodeName"):
                    await self._start(pod, path)

    async def _start(self, pod: Body, path: str) -> None:
        metadata = pod["metadata"]
        node, number = metadata["annotations"][NODE_ANNOTATION], next(self._numbers)
        address = f"10.99.{number // 250}.{number % 250 + 1}"
        self._addresses[metadata["uid"]] = address
        agent = PodAgent(metadata["labels"][JOB_LABEL], metadata["name"], node, address)
        self._server.agents[address] = agent
        self.writes += 2
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "target": target}
        await self._api.create(
            f"{path}/binding", {**binding, "metadata": {"name": metadata["name"]}}
        )
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        status |= {"conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": []}
        await self._api.patch(f"{path}/status", {"status": status})
