"""What a job asks of the arbiter: the GPUs that jobs have between them, its limits, its pods."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heddle_operator.rules.demand import demand_of, weight_of
from heddle_operator.state.plan_reply import PlanKey, PlanReply, ReferencedPlan
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import situation
from heddle_operator.state.snapshot import Headroom, Observed, ObservedNode, ObservedPod
from heddle_operator.state.worth import Worth
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job, a_record, view_of
from tests.fakes.planner import fake_plan

SEEN = Observed(
    nodes=(
        ObservedNode(name="a", gpu_type="demo-fast", gpus=2),
        ObservedNode(name="b", gpu_type="demo-fast", gpus=0, lent=4),
    ),
    pods=(ObservedPod(name="p", node="a", ordinal=0, gpus=1, phase="running"),),
    unusable=(("b", "has no free GPU"),),
    priority=7,
)


def demand(seen=SEEN, **elastic):
    return demand_of(
        view_of(a_job(**elastic), seen, 10.0, situation=situation(seen, 10.0, Settings()))
    )


def record(gpus, epoch=1, step_s=1.0, outcome="live"):
    nodes = Composition((Node(name="a", gpu_type="demo-fast", gpus=gpus),))
    plan = fake_plan(nodes, a_job().workload)
    return a_record(plan, nodes, epoch, outcome=outcome, step_s=step_s)


def test_what_other_jobs_hold_could_be_its_own():
    found = demand()
    assert found.nodes == (("a", 2), ("b", 4))
    assert (found.pods, found.priority, found.most) == ((("a", 1),), 7, 6)


def test_its_limits_are_those_of_the_job_and_of_quotas():
    assert demand(maxGPUs=3).most == 3
    assert demand(replace(SEEN, headroom=Headroom(gpus=1))).most == 2
    assert demand(replace(SEEN, headroom=Headroom(pods=0))).most == 1
    assert demand(replace(SEEN, headroom=Headroom(pods=1))).most == 5
    assert demand(replace(SEEN, headroom=Headroom(pods=2))).most == 6


def test_a_pod_that_must_leave_its_node_fills_its_quota_and_counts_for_nothing():
    going = replace(SEEN.nodes[0], leaving_at_s=math.inf)
    seen = replace(SEEN, nodes=(going, SEEN.nodes[1]), headroom=Headroom(gpus=1))
    assert demand(seen, minGPUs=2).most == 1


def test_a_job_that_trains_takes_no_more_by_itself_unless_its_mode_is_auto():
    trains = replace(SEEN, epochs=(record(2),))
    assert [demand(SEEN, mode=mode).firm for mode in ("Recommend", "Manual")] == [math.inf] * 2
    assert demand(trains, mode="Auto").firm == math.inf
    assert demand(trains, mode="Recommend").firm == 2
    named = ReferencedPlan("mine", record(5).plan)
    assert demand(replace(trains, referenced=named), mode="Manual").firm == 5


def test_gpus_that_have_no_plan_are_not_enough():
    key = PlanKey("some nodes", "")
    assert demand(replace(SEEN, replies={key: PlanReply(plan=None, gpus=3)})).least == 4
    assert demand(replace(SEEN, replies={key: PlanReply(plan=None, problem="killed")})).least == 1
    trains = replace(SEEN, epochs=(record(2),), replies={key: PlanReply(plan=None, gpus=3)})
    assert demand(trains).least == 2


@pytest.mark.parametrize("what", [{"taken": ("a Secret",)}, {"template_problem": "no"}])
def test_a_job_that_cannot_start_keeps_nothing_from_others(what):
    found = demand(replace(SEEN, **what))
    assert found.least > found.most
    trains = replace(SEEN, epochs=(record(2),), **what)
    assert demand(trains).least == 1


def test_what_a_pending_plan_wants_is_held():
    assert demand(replace(SEEN, epochs=(record(2, outcome="open"),))).pods == (("a", 1), ("a", 1))


def test_a_job_that_ended_wants_nothing():
    assert demand(replace(SEEN, epochs=(record(2, outcome="complete"),))) is None


@pytest.mark.parametrize(
    ("steps", "weight"),
    [((), 1.0), ((4.0,), 1.0), ((4.0, 2.0), 1.0), ((4.0, 2.9), 0.5), ((4.0, 4.1), 0.25)],
    ids=["unknown", "one size", "twice as fast", "half of it", "slower"],
)
def test_the_weight_is_the_elasticity_of_the_throughput(steps, weight):
    sizes = [record(2**i, i + 1, step_s) for i, step_s in enumerate(steps)]
    assert weight_of(sizes) == weight


MIXED = replace(
    SEEN,
    nodes=(
        *SEEN.nodes,
        ObservedNode(name="c", gpu_type="demo-slow", gpus=4),
        ObservedNode(name="d", gpu_type="demo-slow", gpus=2),
    ),
)
SIZES = (("demo-fast", (4, 2)), ("demo-slow", (4, 2)))


def test_of_several_types_the_largest_nodes_are_weighed_as_far_as_the_job_may_use_them():
    assert demand().weighed == ()
    assert demand(MIXED).weighed == SIZES
    assert demand(MIXED, maxGPUs=5).weighed == (("demo-fast", (4, 1)), ("demo-slow", (4, 1)))


def test_what_was_said_of_other_nodes_of_these_types_holds_until_it_is_weighed_anew():
    old, new, other = (Worth((("demo-fast", ((1, rate),)),)) for rate in (1.0, 2.0, 3.0))
    before = (("demo-fast", (4,)), ("demo-slow", (4, 2)))
    worths = {before: old, (("demo-fast", (4,)),): other}
    assert demand(replace(MIXED, worths=worths)).worth == old
    assert demand(replace(MIXED, worths={**worths, SIZES: new})).worth == new
    assert demand(MIXED).worth is None


def test_gpus_of_a_type_that_is_slower_than_its_profile_are_worth_less():
    curves = (("demo-fast", ((1, 2.0),)), ("demo-slow", ((1, 1.0),)))
    nodes = tuple(
        replace(n, type_speed=0.25 if n.gpu_type == "demo-fast" else 1.0) for n in MIXED.nodes
    )
    worth = demand(replace(MIXED, nodes=nodes, worths={SIZES: Worth(curves)})).worth
    assert worth is not None
    assert [worth.alone(name, 1) for name in ("demo-fast", "demo-slow")] == [0.5, 1.0]


def test_predictions_from_before_a_type_was_corrected_are_no_measure_for_those_after_it():
    before, after = record(2, 1, 4.0), record(4, 2, 4.0)  # as if twice the GPUs brought nothing
    nodes = tuple(replace(n, speed_factor=0.5) for n in after.composition.nodes)
    assert weight_of((before, after)) == 0.25
    assert weight_of((before, replace(after, composition=Composition(nodes)))) == 1.0
