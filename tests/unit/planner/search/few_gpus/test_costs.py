"""Exact costs are the evaluator's, for dense plans and for tiled experts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_types import HARDWARE
from planner.cost.evaluate import cost_of
from planner.plans.plan import Plan
from planner.profiles.generator import generate
from planner.search.few_gpus.costs import CandidateCosts
from planner.search.few_gpus.placed_candidate import candidate_of, plan_of
from tests.builders import MOE, demo_profile, moe_plans, nodes, placed, template, workload
from tests.oracle.answers import committed
from tests.oracle.instances import instances

COMPOSITION = nodes("fast-0:2 fast-1:3 slow-0:2")
PROFILE = generate(MOE, 128, workload().precision, (replace(HARDWARE["a6000"], name="a"),))
ANSWERED = [i for i in instances() if committed()[i.name]["iteration_s"] is not None]


@pytest.mark.parametrize("instance", ANSWERED, ids=lambda instance: instance.name)
def test_an_exact_price_is_the_evaluators(instance):
    request, row = instance.request, committed()[instance.name]
    costs = CandidateCosts(request.workload, request.composition, instance.profile)
    candidate = candidate_of(Plan.from_json(row["plan"]), request.composition)
    for _ in range(2):  # computed, and remembered
        found = costs.of(candidate)
        plan = plan_of(candidate, found.shares, request.composition)
        plan = plan.with_zero(request.workload.zero)
        exact = cost_of(plan, request.workload, request.composition, instance.profile)
        assert found.seconds == pytest.approx(exact.iteration_s, rel=1e-12)
        assert found.seconds == pytest.approx(row["iteration_s"], rel=1e-9)
        floor = costs.without_sync(candidate)
        alone_s = exact.iteration_s - exact.sync_s - exact.broadcast_s
        assert floor.seconds == pytest.approx(alone_s, rel=1e-9)


@settings(max_examples=60)
@given(
    moe_plans(),
    st.lists(st.sampled_from((0.5, 0.8, 1.0)), min_size=4, max_size=4),
    st.integers(0, 1),
)
def test_experts_over_nodes_of_unequal_speed_have_the_evaluators_price(plan, speeds, zero):
    where = Composition(
        tuple(
            Node(name=name, gpu_type="a", gpus=48, speed_factor=speed)
            for name, speed in zip("abcd", speeds, strict=True)
        )
    )
    task = replace(workload(40), model=MOE, zero=zero)
    candidate = candidate_of(plan, where)
    found = CandidateCosts(task, where, PROFILE).of(candidate)
    if found is None:  # ETP leaves a node
        return
    plan = plan_of(candidate, found.shares, where).with_zero(zero)
    exact = cost_of(plan, task, where, PROFILE)
    assert found.seconds == pytest.approx(exact.iteration_s, rel=1e-12)
    shares = [one.micro_batches for one in plan.templates if one.is_in_lock_step]
    assert all(max(of) - min(of) <= 1 for of in shares)  # nobody is spared a round that all have


def test_a_plan_no_faster_than_the_limit_has_no_price():
    plan = placed(template("2x4 1x2", 2, (16,)), composition=COMPOSITION)
    candidate = candidate_of(plan, COMPOSITION)
    costs = CandidateCosts(workload(32), COMPOSITION, demo_profile())
    seconds = costs.of(candidate).seconds
    assert costs.of(candidate, seconds) is None
    assert costs.of(candidate, seconds * 1.001) is not None


def test_a_plan_that_does_not_fit_has_no_price():
    plan = placed(template("1x6", 2, (16,)), composition=COMPOSITION)
    costs = CandidateCosts(workload(32), COMPOSITION, demo_profile())
    assert costs.of(candidate_of(plan, COMPOSITION)) is None
    odd = placed(template("2x6", 4, (8,)), composition=COMPOSITION)
    assert (
        CandidateCosts(workload(31), COMPOSITION, demo_profile()).of(candidate_of(odd, COMPOSITION))
        is None
    )


def test_a_slower_network_card_of_a_node_counts():
    plan = placed(template("2x6", 2, (8, 8)), composition=nodes("fast-0:2 fast-1:2"))
    slow = nodes("fast-0:2 fast-1:2")
    slow = replace(slow, nodes=tuple(replace(node, nic_bytes_per_s=1e6) for node in slow.nodes))
    found = CandidateCosts(workload(32), slow, demo_profile()).of(candidate_of(plan, slow))
    exact = cost_of(plan, workload(32), slow, demo_profile())
    assert found.seconds == pytest.approx(exact.iteration_s, rel=1e-12)
    assert (
        exact.sync_s
        > cost_of(plan, workload(32), nodes("fast-0:2 fast-1:2"), demo_profile()).sync_s
    )
