"""A drain may evict where the job can do without, and nowhere else; what blocks it is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.rules.drain import MOST_YIELDED, Drain, drain_of, request_drain_plan
from heddle_operator.state.actions import RequestPlan
from heddle_operator.state.plan_reply import PlanReply
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import situation
from heddle_operator.state.snapshot import ObservedPod
from tests.fakes.operator import FakeOperator, a_cluster, a_job, running, view_of


def drain(operator, **changes):
    observed = replace(operator.cluster.snapshot(), **changes)
    now = operator.cluster.now
    return drain_of(
        view_of(operator.job, observed, now, situation=situation(observed, now, Settings()))
    )


def cordoned(*names, nodes=("a", "b"), **elastic):
    """A job that trains on two nodes, some of which are cordoned, once the planner has answered."""
    operator = running(*nodes, **elastic)
    for name in names:
        operator.cluster.cordon(name)
    operator.settle()
    return operator


def test_without_a_cordon_no_pod_may_be_evicted():
    assert drain(running("a", "b")) == Drain()


def test_pods_of_a_cordoned_node_may_be_evicted_once_there_is_a_plan_without_it():
    operator = running("a", "b")
    operator.cluster.cordon("b")
    assert drain(operator) == Drain()
    asked = [a for a in operator.reconcile().actions if isinstance(a, RequestPlan)]
    assert [action.composition.gpus for action in asked] == [1]
    operator.settle()
    assert drain(operator) == Drain(frozenset({"tiny-b-0"}))


def test_the_plan_that_was_asked_for_ahead_is_the_one_that_the_drain_needs():
    operator = cordoned("b")
    known = set(operator.cluster.replies)
    operator.cluster.drain("b")
    operator.settle()
    assert operator.cluster.records.all[-1].reason == "drain"
    assert [key for key in operator.cluster.replies if key not in known] == []


def test_too_few_gpus_block_a_drain_and_that_is_said():
    found = drain(cordoned("b", minGPUs=2))
    assert found == Drain(
        blocked="a drain of node b has to wait: 1 GPU would be left, minGPUs is 2; add GPUs or "
        "lower minGPUs"
    )


def test_nodes_that_are_cordoned_together_are_left_together():
    found = drain(cordoned("a", "b"))
    assert found.blocked.startswith("a drain of nodes a and b has to wait: 0 GPUs would be left")


def test_a_model_that_fits_no_smaller_cluster_blocks_a_drain():
    operator = cordoned("b")
    too_large = {key: PlanReply(plan=None, problem="too large") for key in operator.cluster.replies}
    assert drain(operator, replies=too_large).blocked == (
        "a drain of node b has to wait: there is no plan for the 1 GPU that would be left: "
        "too large"
    )


def test_a_node_that_joins_lets_the_drain_go_on():
    operator = cordoned("b", minGPUs=2)
    operator.cluster.add_node("c")
    operator.settle()
    assert drain(operator) == Drain(frozenset({"tiny-b-0"}))


def test_gpus_of_a_type_that_the_job_may_not_use_do_not_count():
    operator = cordoned("b", minGPUs=2, gpuTypes={"allow": ["demo-fast"]})
    operator.cluster.add_node("c", gpu_type="demo-slow")
    operator.settle()
    assert "1 GPU would be left" in drain(operator).blocked


def test_a_job_that_leaves_on_a_cordon_lets_nobody_evict_its_pods():
    assert drain(cordoned("b", leaveOnCordon=True)) == Drain()


def test_ended_pods_keep_no_node_from_being_drained():
    operator = cordoned("b", minGPUs=2)
    pods = tuple(replace(pod, phase="ended") for pod in operator.cluster.snapshot().pods)
    assert drain(operator, pods=pods) == Drain()


@pytest.mark.parametrize("state", ["lost", "starting"])
def test_nothing_is_asked_ahead_while_no_plan_trains(state):
    operator = running("a", "b")
    operator.cluster.cordon("b")
    observed, now = operator.cluster.snapshot(), operator.cluster.now
    where = situation(observed, now, Settings())
    assert len(request_drain_plan(view_of(operator.job, observed, now, situation=where))) == 1
    changed = {"lost": {"lost": ("rank 0 ended",)}, "starting": {"live": None}}[state]
    assert (
        request_drain_plan(
            view_of(operator.job, observed, now, situation=replace(where, **changed))
        )
        == ()
    )


def test_idle_pods_of_a_cordoned_node_may_go_without_asking_anybody():
    operator = running("a", maxGPUs=1)
    idle = ObservedPod(name="tiny-b-0", node="b", ordinal=0, gpus=1, phase="running")
    operator.cluster.add_node("b")
    operator.cluster.cordon("b")
    pods = (*operator.cluster.snapshot().pods, idle)
    assert drain(operator, pods=pods) == Drain(frozenset({"tiny-b-0"}))


def yielding(*nodes, **elastic):
    """A job that yields, once the planner has answered what it was asked ahead."""
    operator = running(*nodes, yieldToAutoscaler=True, **elastic)
    operator.settle()
    return operator


def test_a_job_that_yields_asks_for_one_plan_after_the_other_without_each_of_its_nodes():
    job = a_job(yieldToAutoscaler=True)
    operator, asked = FakeOperator(job, a_cluster(job, "a", "b", "c")), []
    for _ in range(40):
        actions = operator.reconcile().actions
        asked.append([a.composition for a in actions if isinstance(a, RequestPlan)])
        operator.cluster.tick()
    assert max(map(len, asked)) == 1
    names = [tuple(node.name for node in one.nodes) for row in asked for one in row]
    assert names == [("a", "b", "c"), ("b", "c"), ("a", "c"), ("a", "b")]
    assert drain(operator).yielded == {"tiny-a-0", "tiny-b-0", "tiny-c-0"}


def test_a_node_for_whose_loss_there_is_no_plan_is_not_yielded():
    operator = yielding("a", "b")
    replies = {
        key: replace(reply, plan=None) if len(reply.plan.nodes) == 1 else reply
        for key, reply in operator.cluster.replies.items()
    }
    assert drain(operator, replies=replies) == Drain()


def test_nothing_is_yielded_below_min_gpus():
    assert drain(yielding("a", "b", minGPUs=2)) == Drain()


def test_a_free_node_without_a_ready_pod_makes_up_for_none():
    operator = yielding("a", "b", minGPUs=2)
    operator.cluster.pulls_until_s["c"] = 1e9
    operator.cluster.add_node("c")
    for _ in range(40):
        operator.reconcile()
        operator.cluster.tick()
    assert drain(operator) == Drain()
    operator.cluster.pulls_until_s.clear()
    for _ in range(60):
        operator.reconcile()
        operator.cluster.tick()
    assert drain(operator).yielded == {"tiny-a-0", "tiny-b-0", "tiny-c-0"}


def test_while_a_pod_goes_no_other_is_yielded():
    operator = yielding("a", "b", "c")
    assert len(drain(operator).yielded) == 3
    first, *others = operator.cluster.snapshot().pods
    assert drain(operator, pods=(replace(first, deleting=True), *others)) == Drain()


def test_while_a_node_leaves_no_pod_is_yielded():
    operator = yielding("a", "b", "c")
    operator.cluster.drain("a")
    assert drain(operator) == Drain()


def test_a_cordoned_node_is_drained_freely_and_the_others_are_yielded_without_it():
    operator = yielding("a", "b", "c")
    operator.cluster.cordon("a")
    operator.settle()
    assert drain(operator) == Drain(
        frozenset({"tiny-a-0"}), "", frozenset({"tiny-b-0", "tiny-c-0"})
    )


def test_a_large_job_yields_only_so_many_nodes():
    operator = yielding(*(f"n{i:02}" for i in range(20)))
    operator.settle(120)
    assert len(drain(operator).yielded) == MOST_YIELDED
