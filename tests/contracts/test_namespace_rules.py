"""A real API server's word on quotas and templates is what the adapter makes of it."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.state.actions import AdoptPlan, CreatePod
from heddle_operator.state.snapshot import Headroom
from planner.cluster.composition import Composition, Node
from tests.fakes.kubernetes import a_kubernetes
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan

pytestmark = pytest.mark.slow

NODES = Composition(
    (Node(name="a", gpu_type="demo-fast", gpus=2), Node(name="b", gpu_type="demo-fast", gpus=4))
)
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "team"},
    "spec": {"hard": {"requests.nvidia.com/gpu": "3"}},
}
LABELS = {"pod-security.kubernetes.io/enforce": "restricted"}


def run(control_plane, test, job=None):
    async def main():
        async with a_kubernetes(control_plane, job or a_job(), NODES) as (cluster, wait, _):
            await asyncio.wait_for(test(cluster, wait), 60)

    asyncio.run(main())


def namespace(cluster):
    return f"/api/v1/namespaces/{cluster.kube.job.metadata.namespace}"


def test_a_quota_limits_the_job_and_a_refused_pod_has_it_read_at_once(control_plane):
    async def test(cluster, wait):
        assert (await cluster.observe()).headroom == Headroom()
        path = f"{namespace(cluster)}/resourcequotas"
        await cluster.api.create(path, QUOTA)
        while not (await cluster.api.get(f"{path}/team")).get("status", {}).get("used"):
            await wait(None)
        plan = fake_plan(NODES, a_job().workload)
        await cluster.apply(AdoptPlan(epoch=1, plan=plan, reason="start", composition=NODES))
        await cluster.apply(CreatePod("tiny-b-0", "b", 0, 4))
        seen = await cluster.observe()
        assert [(refused.name, refused.node) for refused in seen.refusals] == [("tiny-b-0", "b")]
        assert seen.headroom == Headroom(3, None, "quota team")
        await cluster.apply(CreatePod("tiny-b-0", "b", 0, 2))
        await cluster.apply(CreatePod("tiny-a-0", "a", 0, 2))
        seen = await cluster.observe()
        assert [pod.name for pod in seen.pods] == ["tiny-b-0"]
        assert seen.headroom == Headroom(1, None, "quota team")

    run(control_plane, test)


def test_a_pod_that_admission_refuses_is_known_before_one_is_made(control_plane):
    async def test(cluster, _):
        await cluster.api.patch(namespace(cluster), {"metadata": {"labels": LABELS}})
        seen = await cluster.observe()
        assert 'violates PodSecurity "restricted:latest"' in seen.template_problem
        assert (await cluster.api.get(f"{namespace(cluster)}/pods"))["items"] == []

    job = a_job()
    template = {"spec": {"hostNetwork": True}}
    worker = job.spec.worker.model_copy(update={"template": template})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"worker": worker})})
    run(control_plane, test, job)


def test_a_pod_that_admission_takes_is_no_problem(control_plane):
    async def test(cluster, _):
        assert (await cluster.observe()).template_problem == ""

    run(control_plane, test)
