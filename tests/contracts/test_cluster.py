"""What every `Cluster` must do: one suite for the fake and for processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest

from heddle_operator.actions import AdoptPlan, CloseEpoch, CreatePod, DeletePod
from heddle_operator.errors import ClusterConflict
from heddle_operator.local.cluster import LocalCluster
from heddle_operator.local.processes import RUN_MARK, processes_with
from heddle_operator.wake import Wake
from planner.composition import Composition, Node
from tests.fakes.cluster import FakeCluster
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan

JOB = a_job()
NODES = Composition((Node("a", "demo-fast", 1), Node("b", "demo-fast", 2)))
ADOPT = AdoptPlan(1, fake_plan(NODES, JOB.workload), "start", NODES)
POD = CreatePod("tiny-b-0", "b", 0, 2)
# An agent that only listens: what pods do is the worker's contract, not the cluster's.
AGENT = (
    sys.executable,
    "-c",
    "import json, sys; print(json.dumps({'port': 1}), flush=True); sys.stdin.read()",
)


@contextlib.asynccontextmanager
async def fake(tmp_path):
    cluster = FakeCluster("tiny", JOB.workload)
    for node in NODES.nodes:
        cluster.add_node(node.name, node.gpu_type, node.gpus)
    yield cluster, cluster.wait_change, cluster.tick


@contextlib.asynccontextmanager
async def local(tmp_path):
    wake = Wake()
    token = tmp_path / "token"
    token.write_text("secret")
    cluster = LocalCluster("tiny", "contract", tmp_path, token, wake, agent_command=AGENT)
    for node in NODES.nodes:
        cluster.join(node)
    try:
        yield cluster, wake.wait, lambda: None
    finally:
        await cluster.close()
        assert processes_with(**{RUN_MARK: "contract"}) == ()


@pytest.fixture(params=[fake, local], ids=["fake", "local"])
def make(request, tmp_path):
    return lambda: request.param(tmp_path)


async def until(cluster, wait, advance, is_so):
    """Wait for changes until the cluster is so."""
    for _ in range(50):
        advance()
        observed = await cluster.observe()
        if is_so(observed):
            return observed
        await wait(5.0)
    raise AssertionError(f"never so: {observed.pods}")


def run(make, test):
    async def main():
        async with make() as (cluster, wait, advance):
            await asyncio.wait_for(test(cluster, wait, advance), 20)

    asyncio.run(main())


def test_nodes_are_seen_sorted_by_name(make):
    async def test(cluster, wait, advance):
        observed = await cluster.observe()
        assert [(node.name, node.gpus) for node in observed.nodes] == [("a", 1), ("b", 2)]

    run(make, test)


def test_adoption_is_atomic(make):
    async def test(cluster, wait, advance):
        await cluster.apply(ADOPT)
        with pytest.raises(ClusterConflict):
            await cluster.apply(ADOPT)
        await cluster.apply(CloseEpoch(1, "aborted", "because"))
        (record,) = (await cluster.observe()).epochs
        assert (record.outcome, record.message, record.plan) == ("aborted", "because", ADOPT.plan)

    run(make, test)


def test_a_pod_that_is_created_twice_exists_once_and_gets_an_address(make):
    async def test(cluster, wait, advance):
        await cluster.apply(POD)
        await cluster.apply(POD)
        observed = await until(cluster, wait, advance, lambda o: o.pods[0].phase == "running")
        (pod,) = observed.pods
        assert (pod.name, pod.node, pod.gpus) == ("tiny-b-0", "b", 2)
        assert pod.address

    run(make, test)


def test_a_deleted_pod_goes_and_deleting_again_is_fine(make):
    async def test(cluster, wait, advance):
        await cluster.apply(POD)
        await until(cluster, wait, advance, lambda o: o.pods[0].phase == "running")
        await cluster.apply(DeletePod(POD.name, "test"))
        await cluster.apply(DeletePod(POD.name, "test"))
        await until(cluster, wait, advance, lambda o: not o.pods)
        await cluster.apply(DeletePod(POD.name, "test"))

    run(make, test)


def test_a_drained_node_is_leaving_and_one_that_is_killed_is_gone(make):
    async def test(cluster, wait, advance):
        await cluster.apply(POD)
        await until(cluster, wait, advance, lambda o: o.pods[0].phase == "running")
        cluster.drain("b")
        leaving = {n.name: n.leaving_at_s for n in (await cluster.observe()).nodes}
        assert leaving["a"] is None
        assert leaving["b"] is not None
        getattr(cluster, "kill_node", None) and cluster.kill_node("b")
        getattr(cluster, "kill", None) and cluster.kill("b")
        observed = await cluster.observe()
        assert [node.name for node in observed.nodes] == ["a"]
        assert observed.pods == ()

    run(make, test)
