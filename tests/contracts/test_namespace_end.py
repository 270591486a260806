"""At a real API server, a namespace that is deleted ends its jobs: nobody writes there any more."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import secrets

import pytest

from heddle_operator.controller.controller import GONE_GRACE_S
from heddle_operator.kube.client import ApiRefused, connect
from planner.cluster.composition import Node
from tests.builders import heddle_job
from tests.contracts.operator_process import an_operator, free_port
from tests.fakes.kubelet import Kubelets

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NAMES = ("one", "two")
NODES = tuple(Node(name=f"ending-{name}", gpu_type="demo-fast", gpus=2) for name in NAMES)
REFUSED = re.compile(r'apiserver_request_total{code="403",.*verb="POST".*} (\d+)')
WATCHED_S = 5.0  # several of the looks that an operator takes at a job that moves


def a_job(name):
    """On one of the nodes."""
    elastic = {"minGPUs": 2, "maxGPUs": 2}
    training = {"globalBatch": 32, "sequenceLength": 128}
    return heddle_job(name, training=training, elastic=elastic)


async def until(ask, is_so):
    """The answer, once it is so."""
    for _ in range(900):
        if is_so(found := await ask()):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"never so: {found}")


@contextlib.asynccontextmanager
async def that_beat(kubelets):
    """The nodes, which say each second that they are there."""

    async def beat():
        while True:
            await asyncio.sleep(1.0)
            for node in NODES:
                await kubelets.beat(node)

    for node in NODES:
        await kubelets.join(node)
    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def refusals(api):
    """Creations that the API server has refused so far."""
    return sum(int(number) for number in REFUSED.findall(await api.text("/metrics")))


async def end_in(api, namespace, kubelets):
    path = f"/api/v1/namespaces/{namespace}"
    for name in NAMES:
        jobs = f"/apis/heddle.dev/v1alpha1/namespaces/{namespace}/heddlejobs"
        await api.create(jobs, a_job(name))

    async def pods():
        await kubelets.work()
        return (await api.get(f"{path}/pods"))["items"]

    await until(pods, lambda rows: [r["status"]["phase"] for r in rows] == ["Running"] * 2)
    before = await refusals(api)
    await api.delete(path, (await api.get(path))["metadata"]["uid"])
    for node in NODES:  # as agents tell of it that are to end: the operator writes
        draining = {"metadata": {"annotations": {"heddle.dev/draining": "its pods end"}}}
        await api.patch(f"/api/v1/nodes/{node.name}", draining)

    async def graces():  # without a kubelet they stay
        rows = (await api.get(f"{path}/pods"))["items"]
        return [row["metadata"].get("deletionGracePeriodSeconds") or math.inf for row in rows]

    await until(graces, lambda found: max(found) <= GONE_GRACE_S)
    tried = await refusals(api) - before
    await asyncio.sleep(WATCHED_S)
    assert await refusals(api) - before == tried <= 4  # an Event and a record, of each job

    async def is_gone():
        with contextlib.suppress(ApiRefused):
            await kubelets.work()
        try:
            await api.get(path)
        except ApiRefused as error:
            return error.status == 404
        return False

    await until(is_gone, bool)


def test_a_namespace_that_is_deleted_ends_its_jobs_at_once(control_plane):
    async def main():
        async with await connect(control_plane.kubeconfig) as api:
            namespace = f"ending-{secrets.token_hex(4)}"
            await api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
            try:
                only = ("--namespace", namespace)  # jobs of other contracts would take the nodes
                kubelets = Kubelets(api, namespace)
                async with (
                    that_beat(kubelets),
                    an_operator(control_plane.kubeconfig, free_port(), "ending", *only),
                ):
                    await end_in(api, namespace, kubelets)
            finally:
                for node in NODES:
                    control_plane.kubectl("delete", "node", node.name, "--ignore-not-found")

    asyncio.run(main())
