"""Whatever the operator writes at a real API server names it as its field manager."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.kube.client import ApiRefused
from heddle_operator.kube.leader_election import LeaderElector, LeaseSettings
from heddle_operator.kube.owned_objects import JobObjects
from heddle_operator.state.actions import AdoptPlan, CloseEpoch, CreatePod, RecordEvent
from planner.cluster.composition import Composition, Node
from tests.fakes.kubernetes import a_kubernetes
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan

pytestmark = pytest.mark.slow

JOB = a_job()
NODES = Composition((Node(name="a", gpu_type="demo-fast", gpus=1),))
ADOPT = AdoptPlan(epoch=1, plan=fake_plan(NODES, JOB.workload), reason="start", composition=NODES)
KINDS = (
    "/api/v1 configmaps",
    "/api/v1 pods",
    "/api/v1 secrets",
    "/apis/policy/v1 poddisruptionbudgets",
    "/apis/events.k8s.io/v1 events",
    "/apis/coordination.k8s.io/v1 leases",
    "/apis/heddle.dev/v1alpha1 heddlejobs",
)
OWN = "heddle-operator"
OTHERS = {"kube-scheduler", "kube-controller-manager"}  # of their objects, bindings and statuses


async def write_all(cluster):
    """An object of each kind, each verb and each subresource that the operator writes."""
    job = cluster.kube.job
    await cluster.apply(ADOPT)
    await cluster.apply(CloseEpoch(epoch=1, outcome="aborted", message="because"))
    await cluster.apply(CreatePod("tiny-a-0", "a", 0, 1))
    objects = JobObjects(job, cluster.api)
    await objects.token()
    for least in (1, 2):
        await write_budget(objects, least)
    await objects.write_status({"phase": "Pending"})
    await objects.record_event(RecordEvent("kept", "PlanKept", "the plan is kept"))
    path = f"/api/v1/namespaces/{job.metadata.namespace}/pods/tiny-a-0"
    await objects.mark(await cluster.api.get(path), "true")
    lease = LeaseSettings(job.metadata.namespace, "lead", "me", 15)
    elector = LeaderElector(cluster.api, lease)
    await elector.acquire()
    await elector.release()


async def write_budget(objects, least):
    """Until the status that the disruption controller writes meanwhile is not in the way."""
    while True:
        try:
            return await objects.write_budget(least)
        except ApiRefused as error:
            if error.status != 409:
                raise


async def managers(cluster):
    """By kind, of all objects of the namespace: who manages fields of them."""
    found = {}
    for kind in KINDS:
        group, plural = kind.split()
        path = f"{group}/namespaces/{cluster.kube.job.metadata.namespace}/{plural}"
        bodies = (await cluster.api.get(path))["items"]
        rows = [row for body in bodies for row in body["metadata"].get("managedFields") or ()]
        found[plural] = {row["manager"] for row in rows}
    return found


def test_all_that_is_written_names_the_operator(control_plane):
    async def main():
        async with a_kubernetes(control_plane, JOB, NODES) as (cluster, _, _):
            await write_all(cluster)
            found = await managers(cluster)
            assert all(OWN in names for names in found.values()), found
            assert set().union(*found.values()) <= {OWN, *OTHERS}

    asyncio.run(asyncio.wait_for(main(), 60))
