"""GPUs that another namespace holds: what a real scheduler says, and what is made of it."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.reflections import reflectors
from heddle_operator.rules.starts import start_failures
from heddle_operator.state.actions import CreatePod
from heddle_operator.state.settings import Settings
from planner.cluster.composition import Composition, Node
from tests.fakes.kubernetes import a_kubernetes
from tests.fakes.operator import a_job, a_record, view_of
from tests.fakes.planner import fake_plan

pytestmark = pytest.mark.slow

JOB = a_job()
NODES = Composition(
    (Node(name="a", gpu_type="demo-fast", gpus=2), Node(name="b", gpu_type="demo-fast", gpus=4))
)
NAMES = {node.name for node in NODES.nodes}
GPUS = {"nvidia.com/gpu": "3"}


async def a_foreign_pod(cluster, wait):
    """A pod of a namespace of its own that holds three GPUs of node b; the namespace."""
    namespace = f"other-{secrets.token_hex(4)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    await cluster.api.create("/api/v1/namespaces", body)
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    while not (await cluster.api.get(accounts))["items"]:
        await wait(None)
    container = {"name": "c", "image": "none", "resources": {"limits": GPUS, "requests": GPUS}}
    spec = {"nodeSelector": {"kubernetes.io/hostname": "b"}, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/pods"
    await cluster.api.create(path, pod)
    while (await cluster.api.get(f"{path}/p"))["spec"].get("nodeName") != "b":
        await wait(None)
    return namespace


async def gpus_held(cluster, all_pods):
    """GPUs of the nodes that an operator of the job's namespace knows to be held."""
    cache = ObjectCache()
    scope = (cluster.kube.job.metadata.namespace,)
    for reflector in reflectors(cluster.api, cache, scope, all_pods):
        await reflector.list()
    held = cache.allocations.values()
    return sum(allocation.gpus for allocation in held if allocation.node in NAMES)


def test_a_refused_binding_teaches_how_many_gpus_a_node_has_not(control_plane):
    async def main():
        async with a_kubernetes(control_plane, JOB, NODES) as (cluster, wait, _):
            namespace = await a_foreign_pod(cluster, wait)
            try:
                assert await gpus_held(cluster, all_pods=False) == 0
                assert await gpus_held(cluster, all_pods=True) == 3
                await cluster.apply(CreatePod("tiny-b-0", "b", 0, 4))
                while not (seen := await cluster.observe()).pods[0].problem:
                    await wait(None)
                assert seen.pods[0].cause == "scheduling"
                record = a_record(fake_plan(NODES, JOB.workload), NODES)
                settings = Settings(pod_problem_s=0.001)
                later_s = seen.pods[0].created_s + 60
                (failure,) = start_failures(view_of(JOB, seen, later_s, settings=settings), record)
                assert (failure.node, failure.gpus) == ("b", 4), failure
            finally:
                control_plane.kubectl(
                    "delete",
                    "pods",
                    "--all",
                    "--force",
                    "--grace-period=0",
                    "--namespace",
                    namespace,
                )
                await cluster.api.call("DELETE", f"/api/v1/namespaces/{namespace}", None)

    asyncio.run(asyncio.wait_for(main(), 90))
