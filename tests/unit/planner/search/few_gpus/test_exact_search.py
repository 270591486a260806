"""The exact search: what a budget buys, what a limit forbids, and that it finds what is best."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cluster.composition import Composition
from planner.profiles.entries import LinkCost
from planner.request import PlanRequest
from planner.search.candidate import Evaluator
from planner.search.few_gpus.exact_search import ExactSearch
from planner.search.solution_pool import SolutionPool
from tests.builders import demo_profile, nodes, workload
from tests.oracle.answers import committed
from tests.oracle.instances import instances

INSTANCES = {instance.name: instance for instance in instances()}


def searched(request, profile, budget=10_000) -> SolutionPool:
    findings = SolutionPool(request)
    evaluator = Evaluator(
        workload=request.workload,
        composition=request.composition,
        profile=profile,
        min_holders=request.min_holders,
    )
    ExactSearch(evaluator, findings).run(lambda: False, budget)
    return findings


@pytest.mark.parametrize(
    "name",
    [
        "05-moe",  # three nodes of which one straggles in the middle of the pipeline
        "07-moe",  # two types with tilings of their own
        "19-moe",  # experts spread over replicas
        "58-dense",  # a template that is slow alone
        "65-dense",  # one structure with two fills
        "82-dense",  # as many micro-batches in flight as fit
    ],
)
def test_the_best_plan_of_all_is_found(name):
    instance = INSTANCES[name]
    best = searched(instance.request, instance.profile, 2000).best
    assert best.cost.iteration_s == pytest.approx(committed()[name]["iteration_s"], rel=1e-9)


def test_it_keeps_to_its_evaluations_and_with_more_goes_on_from_there():
    instance = INSTANCES["19-moe"]
    best_s = [math.inf]
    for budget in (20, 100, 500, 3000):
        found = searched(instance.request, instance.profile, budget)
        assert found.evaluations <= budget
        best_s.append(found.best.cost.iteration_s)
        assert best_s[-1] <= best_s[-2]
    assert best_s[-1] == pytest.approx(committed()["19-moe"]["iteration_s"], rel=1e-9)


def test_equal_seeds_find_equal_plans():
    instance = INSTANCES["07-moe"]
    one, other = (searched(instance.request, instance.profile, 500) for _ in range(2))
    assert one.best.plan == other.best.plan
    assert one.evaluations == other.evaluations


def test_one_more_holder_comes_before_speed():
    composition = nodes("fast-0:2 fast-1:2")
    request = PlanRequest(workload=workload(), composition=composition, min_holders=2)
    assert searched(request, demo_profile()).best.holders == 2


def test_a_plan_above_the_price_is_only_the_nearest():
    priced = Composition(tuple(replace(n, price=5.0) for n in nodes("fast-0:2 fast-1:2").nodes))
    request = PlanRequest(workload=workload(), composition=priced, max_price=5.0)
    found = searched(request, demo_profile())
    assert len(found.best.plan.nodes) == 1
    dear = searched(replace(request, max_price=1.0), demo_profile())
    assert dear.best is None
    assert dear.nearest is not None


def test_a_sum_of_prices_that_rounds_above_the_limit_may_be_paid():
    there = nodes("fast-0:2 fast-1:2 fast-2:2").nodes
    priced = Composition(tuple(replace(node, price=0.1) for node in there))
    request = PlanRequest(workload=workload(), composition=priced, max_price=0.3)
    found = searched(request, demo_profile())
    assert len(found.best.plan.nodes) == 3


def test_what_fits_nowhere_ends():
    request = PlanRequest(workload=workload(), composition=nodes("fast-0:1"))
    found = searched(request, demo_profile())
    assert (found.best, found.nearest) == (None, None)


LINKS = st.builds(LinkCost, st.floats(0, 1e12), st.floats(1e-12, 1e18))


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(LINKS, LINKS)
def test_any_finite_link_is_planned_within_the_budget(inside, network):
    profile = demo_profile()
    odd = replace(profile, inside_links=dict.fromkeys(profile.types, inside), network=network)
    found = searched(
        PlanRequest(workload=workload(), composition=nodes("fast-0:2 fast-1:2")), odd, 100
    )
    assert found.evaluations <= 100
    assert found.best.cost.iteration_s < math.inf
