"""How long a drain waits for other pods, and the plan of one that cannot: fewer replicas."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heddle_operator.rules.emergency import CHANGE_S, MARGIN, emergency_left_s, without_replicas
from heddle_operator.state.actions import AdoptPlan
from planner.cluster.composition import Composition, Node
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage, faults
from tests.fakes.operator import FakeOperator, a_cluster, a_job, view_of
from tests.fakes.planner import fake_plan

JOB = a_job()
TICK_S = 0.5
NODES = Composition(tuple(Node(name=name, gpu_type="demo-fast", gpus=2) for name in "abc"))


def test_what_is_dropped_is_made_up_for_by_the_others():
    plan = fake_plan(NODES, JOB.workload)
    left = without_replicas(plan, {"b"}, JOB.workload)
    assert left.nodes == ("a", "c")
    assert sum(template.samples for template in left.templates) == JOB.workload.global_batch
    assert faults(left, JOB.workload, NODES.without({"b"})) == ()
    assert without_replicas(plan, (), JOB.workload) == plan


def test_replicas_of_one_template_are_renumbered():
    stage = Stage(gpu_type="demo-fast", tp=1, layers=6)
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
    stage = Stage(gpu_type="demo-fast", tp=1, layers=6)
    templates = (FilledTemplate((stage,), 1, (1,)), FilledTemplate((stage,), 31, (1,)))
    placement = (PlacedStage(0, 0, 0, "a", (0,)), PlacedStage(1, 0, 0, "b", (0,)))
    assert without_replicas(Plan(templates, placement), {"a"}, JOB.workload) is None


def test_an_emergency_begins_when_a_change_and_its_search_no_longer_fit_with_a_margin():
    operator = FakeOperator(JOB, a_cluster(JOB, "a", "b"))
    operator.settle()
    cluster = operator.cluster
    live = cluster.records.all[-1]

    def left(is_planned):
        return emergency_left_s(
            view_of(JOB, cluster.snapshot(), cluster.now), live, is_planned=is_planned
        )

    assert left(True) == float("inf")
    cluster.drain("b", 120.0)
    assert left(True) == pytest.approx(120 - MARGIN * CHANGE_S)
    assert left(False) == pytest.approx(left(True) - MARGIN * JOB.spec.planner.budget_seconds)


def test_an_evicted_pod_is_an_emergency_like_a_node_with_a_notice():
    operator = FakeOperator(JOB, a_cluster(JOB, "a", "b", "c"))
    operator.settle()
    cluster = operator.cluster
    pod = cluster.pods["tiny-b-0"]
    cluster.pods["tiny-b-0"] = replace(pod, deleting=True, leaving_at_s=cluster.now + 10.0)
    decision = operator.reconcile()
    (adopt,) = [action for action in decision.actions if isinstance(action, AdoptPlan)]
    assert (adopt.plan.nodes, adopt.is_emergency) == (("a", "c"), True)
    assert decision.message.endswith("node b hosts pod tiny-b-0, which must leave")


def test_a_pod_that_was_long_in_starting_makes_no_emergency():
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
    left_s = emergency_left_s(view_of(JOB, cluster.snapshot(), cluster.now), live, is_planned=True)
    assert left_s == pytest.approx(30 - MARGIN * (live.closed_s - live.seal.sealed_s))


class Story:
    """Nodes a and b train, c joins and its pod takes a while to start; then a is drained."""

    def __init__(self, notice_s: float, start_s: float, **elastic: object) -> None:
        job = a_job(**{"minHolders": 2, "minGainPercent": 0, **elastic})
        self.cluster = a_cluster(job, "a", "b")
        self.cluster.now = 100.0  # both joined long ago
        self.operator = FakeOperator(job, self.cluster)
        self.operator.settle()
        self.cluster.add_node("c")
        self.cluster.pulls_until_s["c"] = self.cluster.now + start_s
        self.fewest, self.left_s = 2, math.inf
        self.reasons: list[str] = []
        self.cluster.drain("a", notice_s)
        self.drained_s = self.cluster.now

    def run(self, seconds: float) -> Story:
        """Pass and tick; note how few nodes hold state, and when `a` is left."""
        cluster = self.cluster
        end_s = cluster.now + seconds
        while cluster.now < end_s:
            decision = self.operator.reconcile()
            if decision.message not in self.reasons:
                self.reasons.append(decision.message)
            cluster.tick(TICK_S)
            holding = {agent.node for agent, _ in cluster.holders()}
            self.fewest = min(self.fewest, len(holding))
            if "a" not in holding:
                self.left_s = min(self.left_s, cluster.now - self.drained_s)
        return self

    @property
    def lived(self) -> list[tuple[str, ...]]:
        """Nodes of the plans that were trained."""
        return [r.plan.nodes for r in self.cluster.records.all if r.outcome == "live"]


@pytest.mark.parametrize("notice_s", [math.inf, 300.0])
def test_the_pod_of_another_node_is_started_first(notice_s):
    story = Story(notice_s, start_s=60.0).run(120)
    assert story.lived == [("a", "b"), ("b", "c")]
    assert story.fewest == 2
    assert 60 <= story.left_s < 70


def test_a_node_that_joined_just_before_is_waited_for():
    """It could flap, so no plan uses it before it has been there for some seconds."""
    story = Story(math.inf, start_s=20.0, joinDebounceSeconds=5).run(120)
    assert story.lived == [("a", "b"), ("b", "c")]
    assert story.fewest == 2
    assert story.reasons[0] == (
        "the job moves once node c, which joined lately, may be used: minHolders is 2, and node a "
        "got a notice"
    )


def test_a_short_notice_waits_for_no_node_that_joined_just_before():
    story = Story(30.0, start_s=20.0, joinDebounceSeconds=5).run(120)
    assert story.lived[:2] == [("a", "b"), ("b",)]
    assert story.left_s < 10


def test_a_short_notice_makes_an_emergency():
    story = Story(30.0, start_s=60.0).run(120)
    assert story.lived[:2] == [("a", "b"), ("b",)]
    assert story.left_s < 10
    assert story.lived[-1] == ("b", "c")
    assert any("in haste" in reason for reason in story.reasons)


def test_who_waited_in_vain_moves_before_the_notice_ends():
    story = Story(120.0, start_s=600.0).run(200)
    assert story.lived == [("a", "b"), ("b",)]
    assert 60 < story.left_s < 120


def test_where_no_node_can_help_nobody_waits():
    story = Story(math.inf, start_s=60.0, minHolders=1).run(20)
    assert story.lived == [("a", "b"), ("b",)]
    assert story.left_s < 10


def test_a_pod_that_cannot_start_holds_up_no_drain():
    story = Story(math.inf, start_s=0.0)
    story.cluster.broken = {"c": ("image", "the image cannot be pulled")}
    story.run(60)
    assert story.lived == [("a", "b"), ("b",)]
    assert story.left_s < 40


def test_a_node_lost_while_a_drain_waits_costs_no_state():
    story = Story(math.inf, start_s=60.0).run(20)
    story.cluster.kill_node("b")
    story.run(120)
    assert story.lived == [("a", "b"), ("c",)]
    assert max(rank.step for _, rank in story.cluster.holders()) > 0


def test_the_grace_of_an_evicted_pod_is_used_to_start_another_one_first():
    story = Story(math.inf, start_s=20.0)
    cluster = story.cluster
    cluster.nodes["a"] = replace(cluster.nodes["a"], leaving_at_s=None, is_cordoned=True)
    pod = cluster.pods["tiny-a-0"]
    cluster.pods["tiny-a-0"] = replace(pod, deleting=True, leaving_at_s=cluster.now + 60.0)
    story.run(60)
    assert story.lived == [("a", "b"), ("b", "c")]
    assert story.fewest == 2


@pytest.mark.parametrize("why", ["unhealthy", "another job's"])
def test_gpus_that_must_be_left_now_are(why):
    story = Story(math.inf, start_s=60.0)
    cluster = story.cluster
    if why == "unhealthy":
        cluster.pods["tiny-a-0"] = replace(cluster.pods["tiny-a-0"], notice="a GPU is unhealthy")
    else:
        snapshot = cluster.snapshot
        cluster.snapshot = lambda: replace(snapshot(), allowed={"b": 1, "c": 1})
    story.run(20)
    assert story.lived == [("a", "b"), ("b",)]
    assert story.left_s < 10
