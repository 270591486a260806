"""What every `Cluster` must do: one suite for the fake, for processes, and for Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys

import pytest

from heddle.local.cluster import LocalCluster
from heddle.local.processes import RUN_MARK, processes_with
from heddle_operator.apis.errors import ClusterConflict
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.actions import (
    AdoptPlan,
    CloseEpoch,
    CreatePod,
    DeletePod,
    PruneEpoch,
    SealEpoch,
)
from heddle_operator.state.epoch_record import Seal
from planner.cluster.composition import Composition, Node
from tests.fakes.cluster import FakeCluster
from tests.fakes.kubernetes import a_kubernetes
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan
from worker.contract import Member, Resume

JOB = a_job()
NODES = Composition(
    (Node(name="a", gpu_type="demo-fast", gpus=1), Node(name="b", gpu_type="demo-fast", gpus=2))
)
ADOPT = AdoptPlan(epoch=1, plan=fake_plan(NODES, JOB.workload), reason="start", composition=NODES)
POD, OTHER = CreatePod("tiny-b-0", "b", 0, 2), CreatePod("tiny-a-0", "a", 0, 1)
SEAL = Seal(
    members=(Member(pod="tiny-b-0", slot=1, node="b", gpu=1, rank=0, holds=None),),
    store="10.0.0.1:5",
    resume=Resume(step=3, gradient_norm=0.5),
    sealed_s=0.0,
    known_exits=(("tiny-b-0", 12),),
)
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
    trigger = Trigger()
    token = tmp_path / "token"
    token.write_text("secret")
    run_id = str(tmp_path)  # tests of other processes have theirs
    cluster = LocalCluster("tiny", run_id, tmp_path, token, trigger, agent_command=AGENT)
    for node in NODES.nodes:
        cluster.join(node)
    try:
        yield cluster, trigger.wait, lambda: None
    finally:
        await cluster.close()
        assert processes_with(**{RUN_MARK: run_id}) == ()


@pytest.fixture(
    params=[
        "fake",
        "local",
        pytest.param("kubernetes", marks=[pytest.mark.slow, pytest.mark.cluster]),
    ],
)
def make(request, tmp_path):
    if request.param == "kubernetes":
        plane = request.getfixturevalue("control_plane")
        return lambda: a_kubernetes(plane, JOB, NODES)
    return lambda: {"fake": fake, "local": local}[request.param](tmp_path)


async def until(cluster, wait, advance, is_so):
    """Wait for changes until the cluster is so."""
    for _ in range(200):
        advance()
        observed = await cluster.observe()
        if is_so(observed):
            return observed
        await wait(5.0)
    raise AssertionError(f"never so: {observed.nodes}, {observed.pods}")


def run(make, test):
    async def main():
        async with make() as (cluster, wait, advance):
            await asyncio.wait_for(test(cluster, wait, advance), 60)

    asyncio.run(main())


def test_nodes_are_seen_sorted_by_name(make):
    async def test(cluster, wait, advance):
        free = [("a", 1), ("b", 2)]
        seen = await until(
            cluster, wait, advance, lambda o: [(n.name, n.gpus) for n in o.nodes] == free
        )
        assert [node.gpu_type for node in seen.nodes] == ["demo-fast", "demo-fast"]

    run(make, test)


def test_adoption_is_atomic(make):
    async def test(cluster, wait, advance):
        await cluster.apply(ADOPT)
        with pytest.raises(ClusterConflict):
            await cluster.apply(ADOPT)
        await cluster.apply(CloseEpoch(epoch=1, outcome="aborted", message="because"))
        (record,) = (await cluster.observe()).epochs
        assert (record.outcome, record.message, record.plan) == ("aborted", "because", ADOPT.plan)

    run(make, test)


def test_an_epoch_is_sealed_once_and_ends_once(make):
    async def test(cluster, wait, advance):
        await cluster.apply(ADOPT)
        await cluster.apply(SealEpoch(1, SEAL))
        with pytest.raises(ClusterConflict):
            await cluster.apply(SealEpoch(1, SEAL))
        await cluster.apply(CloseEpoch(epoch=1, outcome="live"))
        await cluster.apply(CloseEpoch(epoch=1, outcome="live"))
        with pytest.raises(ClusterConflict):
            await cluster.apply(CloseEpoch(epoch=1, outcome="aborted"))
        (record,) = (await cluster.observe()).epochs
        assert (record.outcome, record.composition) == ("live", NODES)
        assert (record.seal.members, record.seal.store) == (SEAL.members, SEAL.store)
        assert (record.seal.resume, record.seal.known_exits) == (SEAL.resume, SEAL.known_exits)

    run(make, test)


def test_an_epoch_that_is_not_on_record_can_neither_be_sealed_nor_closed(make):
    async def test(cluster, wait, advance):
        for action in (SealEpoch(7, SEAL), CloseEpoch(epoch=7, outcome="live")):
            with pytest.raises(ClusterConflict):
                await cluster.apply(action)

    run(make, test)


def test_a_pruned_epoch_is_gone_and_its_number_never_comes_again(make):
    async def test(cluster, wait, advance):
        for epoch in (1, 2, 3):
            await cluster.apply(dataclasses.replace(ADOPT, epoch=epoch))
        await asyncio.gather(*(cluster.apply(PruneEpoch(epoch)) for epoch in (1, 2)))
        await cluster.apply(PruneEpoch(1))
        assert [record.epoch for record in (await cluster.observe()).epochs] == [3]
        with pytest.raises(ClusterConflict):
            await cluster.apply(PruneEpoch(3))
        for epoch in (1, 2, 3):
            with pytest.raises(ClusterConflict):
                await cluster.apply(dataclasses.replace(ADOPT, epoch=epoch))
        assert (await cluster.observe()).next_epoch == 4

    run(make, test)


def test_pods_may_be_created_at_once(make):
    async def test(cluster, wait, advance):
        await asyncio.gather(cluster.apply(POD), cluster.apply(OTHER), cluster.apply(POD))
        observed = await until(
            cluster, wait, advance, lambda o: [p.phase for p in o.pods] == ["running"] * 2
        )
        assert [pod.name for pod in observed.pods] == ["tiny-a-0", "tiny-b-0"]

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
