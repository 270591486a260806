"""Which nodes a plan may use now."""

from __future__ import annotations

import dataclasses

import pytest

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.rules.candidates import (
    debounce_left_s,
    leaving_nodes,
    ready_nodes,
    usable_nodes,
)
from heddle_operator.state.actions import RequestPlan
from heddle_operator.state.plan_reply import PlanReply
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import Situation
from heddle_operator.state.snapshot import (
    AgentView,
    Headroom,
    Observed,
    ObservedNode,
    ObservedPod,
)
from planner.cluster.composition import Composition, Node
from tests.builders import heddle_job
from tests.fakes.operator import FakeOperator, a_cluster, a_job, a_record, a_report, view_of
from tests.fakes.planner import fake_plan

LIVE = fake_plan(Composition((Node(name="z", gpu_type="demo-fast", gpus=1),)), a_job().workload)


def on(plan):
    """Where a job stands that trains with this plan; with None, one that does not train yet."""
    composition = Composition((Node(name="z", gpu_type="demo-fast", gpus=1),))
    live = a_record(plan, composition, outcome="live") if plan else None
    return Situation(
        live=live, pending=None, holders=(), lost=(), doubtful=(), ever_live=bool(plan)
    )


def usable(nodes, live=None, now=100.0, **elastic):
    observed = Observed(nodes=tuple(nodes))
    found = usable_nodes(
        view_of(a_job(**elastic), observed, now, situation=on(live)), leaving_nodes(observed)
    )
    return {node.name: node.gpus for node in found.nodes}


def test_a_node_with_a_notice_is_not_used():
    nodes = [
        ObservedNode(name="a", gpu_type="demo-fast", gpus=1),
        ObservedNode(name="b", gpu_type="demo-fast", gpus=1, leaving_at_s=130),
    ]
    assert usable(nodes) == {"a": 1}


@pytest.mark.parametrize(("deleting", "expected"), [(False, {"a": 2, "b": 1}), (True, {"b": 1})])
def test_a_cordoned_node_has_only_the_gpus_of_the_pods_that_stay_there(deleting, expected):
    observed = Observed(
        nodes=(
            ObservedNode(name="a", gpu_type="demo-fast", gpus=2),
            ObservedNode(name="b", gpu_type="demo-fast", gpus=1),
        ),
        pods=(
            ObservedPod(name="p", node="a", ordinal=0, gpus=2, phase="running", deleting=deleting),
        ),
        unusable=(("a", "is cordoned"),),
    )
    found = usable_nodes(view_of(a_job(), observed, 100.0, situation=on(None)), frozenset())
    assert {node.name: node.gpus for node in found.nodes} == expected


def test_a_node_is_used_once_it_was_stable_for_the_debounce_unless_it_trains():
    nodes = [
        ObservedNode(name=name, gpu_type="demo-fast", gpus=1, joined_at_s=98.0)
        for name in ("a", "z")
    ]
    assert usable(nodes, LIVE, joinDebounceSeconds=5) == {"z": 1}
    assert usable(nodes, LIVE, now=103.0, joinDebounceSeconds=5) == {"a": 1, "z": 1}
    job = a_job(joinDebounceSeconds=5)
    assert debounce_left_s(view_of(job, Observed(nodes=tuple(nodes)), 101.0)) == 2.0
    assert debounce_left_s(view_of(job, Observed(nodes=tuple(nodes)), 103.0)) is None


def test_types_that_the_job_does_not_allow_are_left_out():
    nodes = [
        ObservedNode(name="a", gpu_type="demo-fast", gpus=1),
        ObservedNode(name="b", gpu_type="demo-slow", gpus=1),
    ]
    assert usable(nodes, gpuTypes={"allow": ["demo-slow"]}) == {"b": 1}


def test_max_gpus_hides_no_node_from_the_search():
    nodes = [
        ObservedNode(name="a", gpu_type="demo-fast", gpus=4),
        ObservedNode(name="z", gpu_type="demo-fast", gpus=2),
    ]
    assert usable(nodes, LIVE, maxGPUs=3) == {"a": 4, "z": 2}


def test_a_pod_that_gets_its_notice_makes_its_node_leave_only_if_it_trains():
    pod = ObservedPod(name="p", node="a", ordinal=0, gpus=1, phase="running", deleting=True)
    observed = Observed(nodes=(ObservedNode(name="a", gpu_type="demo-fast", gpus=1),), pods=(pod,))
    assert leaving_nodes(observed, {"p"}) == {"a"}
    assert leaving_nodes(observed) == frozenset()


@pytest.mark.parametrize(("stated", "measured", "planned"), [(1, 0.5, 0.5), (0.8, 0.5, 0.4)])
def test_a_plan_counts_on_the_speed_that_is_stated_and_measured(stated, measured, planned):
    node = ObservedNode(
        name="a", gpu_type="demo-fast", gpus=1, speed_factor=stated, measured_speed=measured
    )
    found = usable_nodes(
        view_of(a_job(), Observed(nodes=(node,)), 100.0, situation=on(None)), frozenset()
    )
    assert [n.speed_factor for n in found.nodes] == [planned]


@pytest.fixture
def beside_a_cold_node():
    """A job that trains on two nodes, as observed when a third one has just joined."""
    operator = FakeOperator(a_job(), a_cluster(a_job(), "a", "b"))
    operator.settle()
    operator.cluster.add_node("c")
    live = operator.cluster.records.all[-1].plan
    observed = operator.cluster.snapshot()
    left = usable_nodes(
        view_of(a_job(), observed, operator.cluster.now, situation=on(live)), frozenset({"b"})
    )
    assert [node.name for node in left.nodes] == ["a", "c"]
    return observed, live, left


def test_who_must_leave_goes_where_pods_are_ready(beside_a_cold_node):
    found = ready_nodes(a_job(), *beside_a_cold_node)
    assert [node.name for node in found.nodes] == ["a"]


def test_who_must_leave_waits_for_pods_to_start_where_the_ready_ones_do_not_suffice(
    beside_a_cold_node,
):
    observed, live, left = beside_a_cold_node
    assert ready_nodes(a_job(minGPUs=2), observed, live, left) == left
    key = RequestPlan(left.without({"c"}), live).key
    no_plan = PlanReply(plan=None, problem="memory binds")
    observed = dataclasses.replace(observed, replies={**observed.replies, key: no_plan})
    assert ready_nodes(a_job(), observed, live, left) == left


@pytest.mark.parametrize(
    ("headroom", "live", "expected"),
    [
        (Headroom(gpus=2), None, {"a": 2, "b": 2, "z": 2}),
        (Headroom(pods=1), None, {"a": 2}),
        (Headroom(gpus=0), LIVE, {"z": 1}),
        (Headroom(gpus=1, pods=1), LIVE, {"z": 2}),
        (Headroom(gpus=3, pods=2), LIVE, {"z": 2, "a": 2}),
        (Headroom(gpus=9, pods=0), LIVE, {"z": 1}),
    ],
)
def test_quotas_limit_what_further_pods_may_have(headroom, live, expected):
    nodes = tuple(ObservedNode(name=name, gpu_type="demo-fast", gpus=2) for name in "abz")
    pods = (ObservedPod(name="p", node="z", ordinal=0, gpus=1, phase="running"),) if live else ()
    observed = Observed(nodes=nodes, pods=pods, headroom=headroom)
    found = usable_nodes(view_of(a_job(), observed, 100.0, situation=on(live)), frozenset())
    assert {node.name: node.gpus for node in found.nodes if node.name in expected} == expected
    assert set(expected) == {node.name for node in found.nodes}


@pytest.mark.parametrize(
    ("objective", "own", "prices", "expected"),
    [
        ("Throughput", 3.0, {"demo-fast": 2.0}, None),
        ("Cost", None, {"demo-fast": 2.0}, 8.0),
        ("Cost", 3.0, {"demo-fast": 2.0}, 12.0),
        ("Cost", None, {}, None),
    ],
)
def test_where_money_decides_a_node_costs_what_its_gpus_for_the_job_do(
    objective, own, prices, expected
):
    job = HeddleJob.model_validate(heddle_job("tiny", planner={"objective": objective}))
    observed = Observed(
        nodes=(ObservedNode(name="a", gpu_type="demo-fast", gpus=4, gpu_price=own),)
    )
    view = view_of(job, observed, 100.0, settings=Settings(prices=prices))
    (node,) = usable_nodes(view, frozenset()).nodes
    assert node.price == expected


def over_nccl(device, wire="nccl"):
    job = a_job().over(wire)
    worker = job.spec.worker.model_copy(update={"device": device})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"worker": worker})})


@pytest.mark.parametrize(
    ("device", "wire", "said", "hosts"),
    [
        ("CUDA", "nccl", None, (2, 4)),
        ("CUDA", "staged", "staged", ()),
        ("Auto", "nccl", "nccl", (2, 4)),
        ("Auto", "nccl", "gloo", ()),
        ("Auto", "nccl", None, ()),
        ("CPU", "nccl", "gloo", ()),
    ],
)
def test_pods_are_hosts_where_ranks_use_nccl(device, wire, said, hosts):
    """The pod that ends is none, and all further GPUs of the node would be those of one more."""
    pods = (
        ObservedPod(name="p", node="a", ordinal=0, gpus=2, phase="running"),
        ObservedPod(name="q", node="a", ordinal=1, gpus=1, phase="ended"),
        ObservedPod(name="r", node="a", ordinal=2, gpus=1, phase="running", deleting=True),
    )
    agents = {}
    if said is not None:  # what a silent agent has said counts
        report = a_report(wire=said)
        agents = {"p": AgentView(pod="p", report=report, unreachable_since_s=90.0)}
    observed = Observed(
        nodes=(ObservedNode(name="a", gpu_type="demo-fast", gpus=6),), pods=pods, agents=agents
    )
    view = view_of(over_nccl(device, wire), observed, 100.0, situation=on(None))
    (node,) = usable_nodes(view, frozenset()).nodes
    assert node.hosts == hosts
