"""A job looks anew only at nodes of which something changed, and sees the same as if at all."""

from __future__ import annotations

import random

import pytest

from heddle_operator.inventory.cluster_nodes import ClusterNodes
from heddle_operator.inventory.job_nodes import JobNodes
from heddle_operator.inventory.nodes import NodeRequirements
from heddle_operator.inventory.requests import GPU, GpuAllocation, allocation_of

MINE = ("ns", "mine")
REQUIRED = NodeRequirements({}, leave_on_cordon=False, gpu_types=("demo-fast",))


def a_node(name, gpus=4, ready="True", since=0, labels=None, **spec):
    minutes, seconds = divmod(since, 60)
    time = f"2026-01-01T00:{minutes:02}:{seconds:02}Z"
    return {
        "metadata": {
            "name": name,
            "labels": {"heddle.dev/gpu-type": "demo-fast", **(labels or {})},
        },
        "spec": spec,
        "status": {
            "capacity": {GPU: "4"},
            "allocatable": {GPU: str(gpus), "cpu": "16"},
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": time}],
        },
    }


def a_claim(uid, node, gpus, scheduler="default-scheduler"):
    return allocation_of(
        {
            "metadata": {
                "uid": uid, "name": "x", "namespace": "y",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "schedulerName": scheduler,
                "nodeSelector": {"kubernetes.io/hostname": node},
                "containers": [{"resources": {"requests": {GPU: str(gpus)}}}],
            },
            "status": {"phase": "Pending"},
        }
    )  # fmt: skip


class World:
    """A cluster's nodes, and jobs that count how often they read a node."""

    def __init__(self, *names):
        self.cluster = ClusterNodes()
        self.reads = 0
        for name in names:
            self.cluster.put_node(name, a_node(name), 0.0)

    def job(self, uid="mine"):
        return JobNodes(self.cluster, ("ns", uid), 1767225600.0, self.read)

    def read(self, _, view):
        self.reads += 1
        return view()


def test_only_the_node_that_changed_is_looked_at():
    world = World(*(f"n{i:03}" for i in range(100)))
    job = world.job()
    first = job.look(REQUIRED, (), 50.0)
    assert world.reads == 100
    assert job.look(REQUIRED, (), 51.0) is first
    assert world.reads == 100
    world.cluster.put_node("n007", a_node("n007", gpus=2), 52.0)
    assert job.look(REQUIRED, (), 52.0).nodes[7].gpus == 2
    assert world.reads == 101


def test_jobs_with_the_same_requirements_share_what_a_node_says():
    world = World("a")
    again = NodeRequirements({}, leave_on_cordon=False, gpu_types=("demo-fast",))
    other = NodeRequirements({}, leave_on_cordon=True, gpu_types=("demo-fast",))
    table = world.cluster.table(REQUIRED)
    assert world.cluster.table(again) is table
    assert world.cluster.table(other) is not table


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda c: c.put_node("a", a_node("a", labels={"example.com/tick": "1"}), 60.0), False),
        (lambda c: c.put_node("a", a_node("a", gpus=3), 60.0), True),
        (lambda c: c.put_node("a", a_node("a", ready="False", since=60), 60.0), True),
        (lambda c: c.allocate("p", GpuAllocation(node="a", gpus=1)), True),
        (lambda c: c.allocate("p", GpuAllocation(node="b", gpus=1)), False),
        (lambda c: c.drop_node("a"), True),
        (lambda c: c.put_node("c", a_node("c"), 60.0), False),
    ],
    ids=["a label", "a GPU", "readiness", "a pod", "a pod elsewhere", "gone", "another node"],
)
def test_a_change_differs_where_the_job_reads_it(change, differs):
    world = World("a", "b")
    job = world.job()
    assert not job.differs("a", 50.0)  # a look is to come
    job.look(REQUIRED, (), 50.0)
    change(world.cluster)
    assert job.differs("a", 60.0) == differs


def test_who_holds_gpus_of_a_node_is_known():
    world = World("a", "b")
    job = world.job()
    world.cluster.allocate("p", GpuAllocation(node="a", gpus=3, owner_uid="mine", namespace="ns"))
    job.look(REQUIRED, (), 50.0)
    assert (job.holds("a"), job.holds("b"), job.gpus) == (True, False, 3)


def test_nodes_whose_gpus_are_not_whole_are_known():
    world = World("a", "b", "c")
    world.cluster.put_node("b", a_node("b", labels={"nvidia.com/gpu.replicas": "4"}), 0.0)
    world.cluster.put_node("c", a_node("c", unschedulable=True), 0.0)
    seen = world.job().look(REQUIRED, (), 50.0)
    assert [name for name, _ in seen.unusable] == ["b", "c"]
    assert seen.divided == {"b"}


def test_a_claim_that_nobody_can_meet_is_told_and_then_forgotten():
    world = World("a")
    job = world.job()
    world.cluster.allocate("u", a_claim("u", "a", 4, "nobody"))
    seen = job.look(REQUIRED, (), 10.0)
    assert seen.nodes[0].gpus == 0
    said = "has no free GPU (pod x of namespace y waits for 4 GPUs)"
    assert seen.unusable == (("a", said),)
    seen = job.look(REQUIRED, (), 31.0)
    assert (seen.nodes[0].gpus, seen.unusable) == (4, ())


def test_a_node_that_flaps_joins_later():
    world = World("a")
    job = world.job()
    job.look(REQUIRED, (), 10.0)
    for since in (20, 40):
        world.cluster.put_node("a", a_node("a", ready="False", since=since), float(since))
        world.cluster.put_node("a", a_node("a", since=since + 10), since + 10.0)
    seen = job.look(REQUIRED, (), 50.0)
    assert [flap.node for flap in seen.flaps] == ["a"]
    assert seen.nodes[0].joined_at_s == 50.0 + 30.0


def change(world, random, now):
    """Something happens to one of the nodes."""
    cluster, name = world.cluster, random.choice("abcdef")
    match random.randrange(6):
        case 0:
            gpus, ready = random.randrange(5), random.choice(["True", "False"])
            cluster.put_node(name, a_node(name, gpus, ready, since=now), float(now))
        case 1:
            cluster.drop_node(name)
        case 2 | 3:
            owner = random.choice(["mine", "other", ""])
            uid = str(random.randrange(8))
            row = GpuAllocation(
                node=name, gpus=random.randrange(1, 4), owner_uid=owner, namespace="ns"
            )
            cluster.allocate(uid, random.choice([row, None]))
        case 4:
            uid = str(random.randrange(8))
            cluster.allocate(uid, a_claim(uid, name, random.randrange(1, 4)))
        case 5:
            cluster.put_node(name, a_node(name, unschedulable=True), float(now))


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_same_as_if_each_node_were_looked_at(seed):
    chance, world = random.Random(seed), World(*"abcd")
    job = world.job()
    for now in range(1, 200):
        if chance.random() < 0.7:
            change(world, chance, now)
        jobs = chance.choice([(), ("mine",), ("mine", "other")])
        seen, whole = job.look(REQUIRED, jobs, float(now)), world.job().look(REQUIRED, jobs, now)
        assert seen.unusable == whole.unusable
        assert seen.held == whole.held
        for mine, fresh in zip(seen.nodes, whole.nodes, strict=True):
            assert (mine.name, mine.gpus, mine.lent) == (fresh.name, fresh.gpus, fresh.lent)
            assert (mine.is_ready, mine.leaving_at_s) == (fresh.is_ready, fresh.leaving_at_s)
        assert not any(job.differs(name, float(now)) for name in "abcdef")
