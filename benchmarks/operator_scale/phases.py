"""Changes of the cluster while the operator is measured."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from benchmarks.operator_scale import nodes
from benchmarks.operator_scale.kubelets import PodKubelets
from benchmarks.operator_scale.meters import Meters, between
from benchmarks.operator_scale.sizes import (
    CHANGES,
    GPUS,
    JOB_NODES,
    Measured,
    Sizes,
)
from heddle_operator.apis.labels import JOB_LABEL
from heddle_operator.kube.client import ApiRefused, Body, KubeApi

JOBS = "/apis/heddle.dev/v1alpha1/heddlejobs"
RUNNING_WITHIN_S, DECIDED_WITHIN_S = 180.0, 20.0
SETTLES_S = 3.0  # what followed from the last change is part of the phase
LOOK_S = 0.5
LEAVING = "heddle.dev/draining"


def job_body(namespace: str, name: str, gpus: int) -> Body:
    """A job on the tiny model that takes up to so many GPUs and follows the cluster at once."""
    elastic = {"minGPUs": GPUS, "maxGPUs": gpus, "minHolders": 2}
    return {
        "apiVersion": "heddle.dev/v1alpha1",
        "kind": "HeddleJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"name": "tiny-llama"},
            "data": {"builtin": "text"},
            "training": {"globalBatch": 4096, "sequenceLength": 128},
            "steps": 1_000_000,
            "planner": {"budgetSeconds": 0.5},
            "elastic": {**elastic, "joinDebounceSeconds": 0, "cooldownSeconds": 0},
        },
    }


class Adoptions:
    """When each job adopted a plan, by its records."""

    def __init__(self, api: KubeApi) -> None:
        self.at_s: defaultdict[str, list[float]] = defaultdict(list)
        self._api = api
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow the records of all jobs until this is cancelled."""
        query = {"labelSelector": JOB_LABEL, "timeoutSeconds": "500"}
        while True:
            with suppress(ApiRefused):
                async for event in self._api.watch("/api/v1/configmaps", 600.0, **query):
                    if event["type"] == "ADDED":
                        job = event["object"]["metadata"]["labels"][JOB_LABEL]
                        self.at_s[job].append(time.monotonic())
                        self._changed.set()
                        self._changed = asyncio.Event()
            await asyncio.sleep(0.1)

    async def after(self, job: str, known: int, since_s: float) -> float:
        """Seconds from `since_s` to the job's next record; inf: there is none in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DECIDED_WITHIN_S):
                while len(self.at_s[job]) <= known:
                    await self._changed.wait()
        found = self.at_s[job][known:]
        return found[0] - since_s if found else float("inf")


@dataclass(slots=True, kw_only=True)
class Phases:
    """Each phase changes the cluster, waits for what follows, and says what that took."""

    api: KubeApi
    sizes: Sizes
    meters: Meters
    kubelets: PodKubelets
    adoptions: Adoptions
    writes: int = 0  # of this program
    rate_cpu_s: float = 0.0

    async def idle(self, phase: str) -> Measured:
        """Nothing happens; the operator's CPU time in a second at rest is kept."""

        async def wait(_: Measured) -> None:
            await asyncio.sleep(self.sizes.idle_s)

        found = await self._measure(phase, wait, settles_s=0.0)
        self.rate_cpu_s, found.rate_cpu_s = found.cpu_s / found.wall_s, 0.0
        return found

    async def start_jobs(self) -> Measured:
        """All jobs are created at once."""

        async def start(found: Measured) -> None:
            bodies = [
                job_body(f"team-{'ab'[number % 2]}", f"job-{number}", JOB_NODES * GPUS)
                for number in range(self.sizes.jobs)
            ]
            await nodes.all_done(map(self._create_job, bodies))
            found.note = await self._until_running(self.sizes.jobs)

        return await self._measure(f"{self.sizes.jobs} jobs start", start)

    async def start_large(self, name: str, gpus: int) -> Measured:
        """One job of so many GPUs is created while the others train."""

        async def start(found: Measured) -> None:
            await self._create_job(job_body("team-a", name, gpus))
            found.note = await self._until_running(1, name)

        return await self._measure(f"a job of {gpus} GPUs starts", start)

    async def change_labels(self) -> Measured:
        """A label that nobody reads changes on nodes, one after the other."""

        def change(number: int) -> Awaitable[Any]:
            label = {"example.com/tick": f"t-{number}"}
            return self._patch(nodes.path_of(self._free(number)), {"metadata": {"labels": label}})

        return await self._changes("labels that nobody reads", change)

    async def change_pods(self) -> Measured:
        """Pods of others that hold a GPU come and go on nodes that no job holds."""
        uids: dict[str, str] = {}

        async def change(number: int) -> None:
            name = f"gpu-{number // 2}"
            self.writes += 1
            if number % 2 == 0:
                body = nodes.gpu_pod(name, self._free(number))
                made = await self.api.create(nodes.foreign_pod_path(), body)
                uids[name] = made["metadata"]["uid"]
            else:
                await self.api.delete(nodes.foreign_pod_path(name), uids[name], 0)

        return await self._changes("pods of others that hold a GPU", change)

    async def change_readiness(self) -> Measured:
        """Nodes that no job holds fall silent and come back."""

        def change(number: int) -> Awaitable[Any]:
            path = f"{nodes.path_of(self._free(number // 2))}/status"
            return self._patch(path, {"status": {"conditions": nodes.ready(number % 2 == 1)}})

        return await self._changes("readiness of nodes that no job holds", change)

    async def drain(self) -> Measured:
        """A node of each of some jobs is to leave; from that to the new plan's record."""

        async def change(node: str, _: Body) -> None:
            await self._patch(
                f"/api/v1/nodes/{node}", {"metadata": {"annotations": {LEAVING: "x"}}}
            )

        return await self._moves("drain", change)

    async def lose(self) -> Measured:
        """A pod of each of some jobs is gone; from that to the new plan's record."""

        async def change(_: str, pod: Body) -> None:
            metadata = pod["metadata"]
            self.kubelets.cut(metadata["uid"])
            self.writes += 1
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            await self.api.delete(path, metadata["uid"], 0)

        return await self._moves("loss", change)

    async def _measure(
        self,
        phase: str,
        work: Callable[[Measured], Awaitable[None]],
        settles_s: float = SETTLES_S,
    ) -> Measured:
        said = Measured(phase=phase, wall_s=0.0, cpu_s=0.0)
        before = await self.meters.read()
        await work(said)
        await asyncio.sleep(settles_s)
        found = between(phase, before, await self.meters.read())
        found.rate_cpu_s, found.waits_s, found.note = self.rate_cpu_s, said.waits_s, said.note
        return found

    async def _changes(self, phase: str, change: Callable[[int], Awaitable[Any]]) -> Measured:
        async def work(_: Measured) -> None:
            began_s = time.monotonic()
            for number in range(CHANGES):
                await change(number)
                due_s = began_s + (number + 1) * self.sizes.changes_s / CHANGES
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))

        return await self._measure(phase, work)

    async def _moves(self, kind: str, change: Callable[[str, Body], Awaitable[None]]) -> Measured:
        async def work(found: Measured) -> None:
            for name, node, pod in [move async for move in self._held_nodes(kind == "loss")]:
                known, since_s = len(self.adoptions.at_s[name]), time.monotonic()
                await change(node, pod)
                found.waits_s.append(await self.adoptions.after(name, known, since_s))

        return await self._measure(f"{self.sizes.moves} jobs lose a node by {kind}", work)

    async def _held_nodes(self, is_second_half: bool) -> Any:
        """Jobs, each with one of its nodes and its pod there; a job is in one half."""
        first = self.sizes.moves if is_second_half else 0
        found = await self.api.get("/api/v1/pods", labelSelector=JOB_LABEL)
        pods: defaultdict[str, list[Body]] = defaultdict(list)
        for pod in found["items"]:
            pods[pod["metadata"]["labels"][JOB_LABEL]].append(pod)
        for number in range(first, min(first + self.sizes.moves, self.sizes.jobs)):
            name = f"job-{number}"
            if len(pods[name]) == JOB_NODES:
                yield name, pods[name][-1]["spec"]["nodeName"], pods[name][-1]

    async def _create_job(self, body: Body) -> None:
        self.writes += 1
        namespace = body["metadata"]["namespace"]
        path = f"/apis/heddle.dev/v1alpha1/namespaces/{namespace}/heddlejobs"
        await self.api.create(path, body)

    async def _patch(self, path: str, body: Body) -> None:
        self.writes += 1
        await self.api.patch(path, body)

    def _free(self, number: int) -> int:
        """A node that no job holds: jobs take the first ones."""
        return self.sizes.nodes - 1 - number % max(1, self.sizes.nodes // 10)

    async def _until_running(self, count: int, name: str = "") -> str:
        """Wait until so many jobs train, of that name if one is given; what there is then."""
        began_s = time.monotonic()
        while True:
            jobs = [job for job in await self._statuses() if name in ("", job[0])]
            phases = Counter(phase if gpus else f"{phase} without GPUs" for _, phase, gpus in jobs)
            passed_s = time.monotonic() - began_s
            is_over = passed_s > RUNNING_WITHIN_S or self.meters.has_ended
            if phases["Running"] >= count or is_over:
                gpus = sum(gpus for *_, gpus in jobs)
                said = ", ".join(f"{number} {phase}" for phase, number in phases.items())
                return f"{said} with {gpus} GPUs after {passed_s:.1f} s"
            await asyncio.sleep(LOOK_S)

    async def _statuses(self) -> Iterator[tuple[str, str, int]]:
        found = (await self.api.get(JOBS))["items"]
        statuses = [(job["metadata"]["name"], job.get("status") or {}) for job in found]
        return iter([(n, s.get("phase", "-"), int(s.get("activeGPUs", 0))) for n, s in statuses])
