"""Who decides when the job moves: the planner, the user, or the loss of GPUs."""

from __future__ import annotations

import dataclasses

import pytest

from heddle_operator.epochs.decide import decide
from heddle_operator.state.actions import AdoptPlan, RecordEvent
from heddle_operator.state.plan_reply import ReferencedPlan
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import FakeOperator, a_cluster, a_job, view_of
from tests.fakes.planner import fake_plan

AB = Composition(
    (Node(name="a", gpu_type="demo-fast", gpus=1), Node(name="b", gpu_type="demo-fast", gpus=1))
)


def running(job, *nodes):
    operator = FakeOperator(job, a_cluster(job, *nodes))
    operator.settle()
    return operator, operator.cluster


def decide_with(operator, referenced):
    observed = dataclasses.replace(operator.cluster.snapshot(), referenced=referenced)
    return decide(view_of(operator.job, observed, operator.cluster.now))


def with_ref(job):
    return job.model_copy(update={"spec": job.spec.model_copy(update={"plan_ref": "mine"})})


@pytest.mark.parametrize("mode", ["Recommend", "Manual"])
def test_a_join_moves_nothing_outside_mode_auto(mode):
    operator, cluster = running(a_job(mode=mode), "a")
    cluster.add_node("b")
    operator.settle()
    assert len(cluster.records.all) == 1


@pytest.mark.parametrize("mode", ["Recommend", "Manual"])
@pytest.mark.parametrize("event", ["drain", "kill_node"])
def test_gpus_that_go_are_left_in_every_mode(mode, event):
    operator, cluster = running(a_job(mode=mode), "a", "b")
    getattr(cluster, event)("a")
    operator.settle()
    assert cluster.records.all[-1].outcome == "live"
    assert cluster.records.all[-1].plan.nodes == ("b",)


def test_recommend_says_once_what_it_would_do():
    operator, cluster = running(a_job(mode="Recommend"), "a")
    cluster.add_node("b")
    operator.settle()
    (event,) = [e for e in cluster.events.values() if e.reason == "PlanRecommended"]
    assert event.message.startswith(
        "a plan is recommended and not adopted (mode Recommend): 1 x [demo-"
    )


def test_manual_moves_to_the_plan_of_its_config_map():
    job = with_ref(a_job(mode="Manual"))
    operator = FakeOperator(job, a_cluster(job, "a", "b"))
    plan = fake_plan(AB, job.workload)
    decision = decide_with(operator, ReferencedPlan("mine", plan))
    assert [a.plan for a in decision.actions if isinstance(a, AdoptPlan)] == [plan]


def test_manual_waits_for_its_config_map():
    job = with_ref(a_job(mode="Manual"))
    decision = decide_with(FakeOperator(job, a_cluster(job, "a")), None)
    assert (decision.actions, decision.phase) == ((), "Pending")
    assert decision.message == "the job waits for the plan in ConfigMap mine"
    assert decision.look_again_s


@pytest.mark.parametrize(
    ("referenced", "sentence"),
    [
        (ReferencedPlan("mine", None, "it is not JSON"), "cannot be used: it is not JSON"),
        (
            ReferencedPlan("mine", fake_plan(AB, a_job().workload)),
            "cannot be used: it does not fit: ",
        ),
    ],
    ids=["unreadable", "larger than the cluster"],
)
def test_a_plan_that_cannot_be_used_is_said_and_not_adopted(referenced, sentence):
    job = with_ref(a_job(mode="Manual"))
    decision = decide_with(FakeOperator(job, a_cluster(job, "a")), referenced)
    (event,) = decision.actions
    assert isinstance(event, RecordEvent)
    assert sentence in event.message


def test_manual_keeps_the_plan_that_it_named():
    job = with_ref(a_job(mode="Manual"))
    operator = FakeOperator(job, a_cluster(job, "a", "b"))
    referenced = ReferencedPlan("mine", fake_plan(AB, job.workload))
    for _ in range(30):
        for action in decide_with(operator, referenced).actions:
            operator.cluster.do(action)
        operator.cluster.tick()
    assert (
        decide_with(operator, referenced).message
        == "the plan is kept: it is that of ConfigMap mine"
    )
    assert len(operator.cluster.records.all) == 1
