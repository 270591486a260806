"""A plan without some of its replicas: the same samples, nothing that moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.policy.hurry import CHANGE_S, MARGIN, haste_left_s, without_replicas
from heddle_operator.state.actions import AdoptPlan
from planner.cluster.composition import Composition, Node
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage, faults
from tests.fakes.operator import FakeOperator, a_cluster, a_job
from tests.fakes.planner import fake_plan

JOB = a_job()
NODES = Composition(tuple(Node(name, "demo-fast", 2) for name in "abc"))


def test_what_is_dropped_is_made_up_for_by_the_others():
    plan = fake_plan(NODES, JOB.workload)
    left = without_replicas(plan, {"b"}, JOB.workload)
    assert left.nodes == ("a", "c")
    assert sum(template.samples for template in left.templates) == JOB.workload.global_batch
    assert faults(left, JOB.workload, NODES.without({"b"})) == ()
    assert without_replicas(plan, (), JOB.workload) == plan


def test_replicas_of_one_template_are_renumbered():
    stage = Stage("demo-fast", 1, 6)
    plan = Plan(
        (FilledTemplate((stage,), 2, (5, 5, 6)),),
        tuple(PlacedStage(0, r, 0, node, (0,)) for r, node in enumerate("abc")),
    )
    left = without_replicas(plan, {"a"}, JOB.workload)
    assert left.templates == (FilledTemplate((stage,), 2, (7, 9)),)
    assert [(p.replica, p.node) for p in left.placement] == [(0, "b"), (1, "c")]


@pytest.mark.parametrize("nodes", [{"a", "b", "c"}, {"a"}])
def test_a_plan_whose_every_replica_is_hit_has_none_left(nodes):
    plan = fake_plan(NODES, JOB.workload, as_pipeline=True)
    assert without_replicas(plan, nodes, JOB.workload) is None


def test_samples_that_no_micro_batch_can_take_are_no_plan():
    stage = Stage("demo-fast", 1, 6)
    templates = (FilledTemplate((stage,), 1, (1,)), FilledTemplate((stage,), 31, (1,)))
    placement = (PlacedStage(0, 0, 0, "a", (0,)), PlacedStage(1, 0, 0, "b", (0,)))
    assert without_replicas(Plan(templates, placement), {"a"}, JOB.workload) is None


def test_haste_begins_when_a_change_and_its_search_no_longer_fit_with_a_margin():
    operator = FakeOperator(JOB, a_cluster(JOB, "a", "b"))
    operator.settle()
    cluster = operator.cluster
    live = cluster.records.all[-1]

    def left(is_planned):
        return haste_left_s(JOB, cluster.snapshot(), live, cluster.now, is_planned)

    assert left(True) == float("inf")
    cluster.drain("b", 120.0)
    assert left(True) == pytest.approx(120 - MARGIN * CHANGE_S)
    assert left(False) == pytest.approx(left(True) - MARGIN * JOB.spec.planner.budget_seconds)


def test_an_evicted_pod_is_in_haste_like_a_node_with_a_notice():
    operator = FakeOperator(JOB, a_cluster(JOB, "a", "b", "c"))
    operator.settle()
    cluster = operator.cluster
    pod = cluster.pods["tiny-b-0"]
    cluster.pods["tiny-b-0"] = replace(pod, deleting=True, leaving_at_s=cluster.now + 10.0)
    decision = operator.reconcile()
    (adopt,) = [action for action in decision.actions if isinstance(action, AdoptPlan)]
    assert (adopt.plan.nodes, adopt.in_haste) == (("a", "c"), True)
    assert decision.reason.endswith("node b hosts pod tiny-b-0, which must leave")


def test_a_pod_that_was_long_in_starting_makes_no_haste():
    """A change measures from when its pods were there, for a drain starts none."""
    operator = FakeOperator(JOB, a_cluster(JOB, "a", "b"))
    operator.settle()
    cluster = operator.cluster
    cluster.pulls_until_s["c"] = cluster.now + 60
    cluster.add_node("c")
    operator.run(lambda _: "c" in cluster.records.all[-1].plan.nodes, passes=1000)
    operator.settle(passes=1000)
    live = cluster.records.all[-1]
    assert live.closed_s - live.adopted_s > 10 * (live.closed_s - live.seal.sealed_s)
    cluster.drain("b", 30.0)
    left_s = haste_left_s(JOB, cluster.snapshot(), live, cluster.now, True)
    assert left_s == pytest.approx(30 - MARGIN * (live.closed_s - live.seal.sealed_s))
