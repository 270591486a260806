"""At a real API server: who writes objects with the marks of a job's gets nothing by them."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from heddle_operator.kube.client import ApiRefused
from heddle_operator.resources.pinned_workers import WORKERS
from heddle_operator.state.actions import AdoptPlan, CreatePod
from planner.cluster.composition import Composition, Node
from tests.fakes.kubernetes import a_kubernetes
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan

pytestmark = pytest.mark.slow

NODES = Composition((Node(name="a", gpu_type="demo-fast", gpus=2),))
ADOPT = AdoptPlan(
    epoch=1, plan=fake_plan(NODES, a_job().workload), reason="start", composition=NODES
)
POD = CreatePod("tiny-a-0", "a", 0, 2)
ELSEWHERE = "/api/v1/namespaces/default"
EVIL = "localhost/evil:1"


def run(control_plane, test):
    async def main():
        async with a_kubernetes(control_plane, a_job(), NODES) as (cluster, _, _):
            namespace = f"/api/v1/namespaces/{cluster.kube.job.metadata.namespace}"
            await asyncio.wait_for(test(cluster, namespace), 60)

    asyncio.run(main())


def copied(body, **changed):
    """The object as another user makes it: with all that he can choose, its owner included.

    The finalizer keeps it from the garbage collector, which deletes what has no owner there.
    """
    kept = ("name", "labels", "annotations", "ownerReferences")
    metadata = {key: body["metadata"][key] for key in kept if key in body["metadata"]}
    return {**changed, "metadata": {**metadata, "finalizers": ["example.com/stays"]}}


async def remove(api, path):
    await api.patch(path, {"metadata": {"finalizers": None}})
    with contextlib.suppress(ApiRefused):  # the garbage collector has deleted it
        await api.call("DELETE", path, {"gracePeriodSeconds": 0})


def test_objects_in_another_namespace_are_none_of_the_job(control_plane):
    async def test(cluster, namespace):
        await cluster.apply(ADOPT)
        await cluster.apply(POD)
        before = await cluster.observe()
        record = await cluster.api.get(f"{namespace}/configmaps/tiny-epoch-1")
        pod = await cluster.api.get(f"{namespace}/pods/tiny-a-0")
        failed = {**record["data"], "outcome": "failed"}
        await cluster.api.create(f"{ELSEWHERE}/configmaps", copied(record, data=failed))
        spec = {"nodeName": "a", "containers": [{"name": "worker", "image": EVIL}]}
        await cluster.api.create(f"{ELSEWHERE}/pods", copied(pod, spec=spec))
        try:
            after = await cluster.observe()
            assert [each.name for each in after.pods] == [each.name for each in before.pods]
            assert [each.outcome for each in after.epochs] == ["open"]
        finally:
            await remove(cluster.api, f"{ELSEWHERE}/configmaps/tiny-epoch-1")
            await remove(cluster.api, f"{ELSEWHERE}/pods/tiny-a-0")

    run(control_plane, test)


def test_an_image_that_somebody_writes_into_a_record_gets_into_no_pod(control_plane):
    async def test(cluster, namespace):
        await cluster.apply(ADOPT)
        path = f"{namespace}/configmaps/tiny-epoch-1"
        held = json.loads((await cluster.api.get(path))["data"][WORKERS])
        held["pinned"]["image"] = EVIL
        await cluster.api.patch(path, {"data": {WORKERS: json.dumps(held)}})
        await cluster.observe()
        await cluster.apply(POD)
        pod = await cluster.api.get(f"{namespace}/pods/tiny-a-0")
        assert pod["spec"]["containers"][0]["image"] == "localhost/none"

    run(control_plane, test)
