"""Which nodes a plan may use now."""

from __future__ import annotations

from heddle_operator.eligibility import debounce_left_s, leaving_nodes, usable_nodes
from heddle_operator.snapshot import Observed, ObservedNode, ObservedPod
from planner.composition import Composition, Node
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan

LIVE = fake_plan(Composition((Node("z", "demo-fast", 1),)), a_job().workload)


def usable(nodes, live=None, now=100.0, **elastic):
    observed = Observed(nodes=tuple(nodes))
    found = usable_nodes(a_job(**elastic), observed, live, now, leaving_nodes(observed))
    return {node.name: node.gpus for node in found.nodes}


def test_a_node_with_a_notice_is_not_used():
    nodes = [ObservedNode("a", "demo-fast", 1), ObservedNode("b", "demo-fast", 1, leaving_at_s=130)]
    assert usable(nodes) == {"a": 1}


def test_a_node_is_used_once_it_was_stable_for_the_debounce_unless_it_trains():
    nodes = [ObservedNode(name, "demo-fast", 1, joined_at_s=98.0) for name in ("a", "z")]
    assert usable(nodes, LIVE, joinDebounceSeconds=5) == {"z": 1}
    assert usable(nodes, LIVE, now=103.0, joinDebounceSeconds=5) == {"a": 1, "z": 1}
    job = a_job(joinDebounceSeconds=5)
    assert debounce_left_s(job, Observed(nodes=tuple(nodes)), 101.0) == 2.0
    assert debounce_left_s(job, Observed(nodes=tuple(nodes)), 103.0) is None


def test_types_that_the_job_does_not_allow_are_left_out():
    nodes = [ObservedNode("a", "demo-fast", 1), ObservedNode("b", "demo-slow", 1)]
    assert usable(nodes, gpuTypes={"allow": ["demo-slow"]}) == {"b": 1}


def test_max_gpus_cuts_nodes_that_are_not_in_use_first():
    nodes = [ObservedNode("a", "demo-fast", 4), ObservedNode("z", "demo-fast", 2)]
    assert usable(nodes, LIVE, maxGPUs=3) == {"a": 1, "z": 2}


def test_a_pod_that_gets_its_notice_makes_its_node_leave_only_if_it_trains():
    pod = ObservedPod("p", "a", 0, 1, "running", deleting=True)
    observed = Observed(nodes=(ObservedNode("a", "demo-fast", 1),), pods=(pod,))
    assert leaving_nodes(observed, {"p"}) == {"a"}
    assert leaving_nodes(observed) == frozenset()
