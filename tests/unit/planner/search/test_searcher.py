"""One searcher: equal seeds price equal plans, and one with more to spend goes on from there."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.cost.money import with_prices
from planner.estimator.build_tables import pricing_of
from planner.estimator.top_k import offer
from planner.request import PlanRequest
from planner.search.searcher import ENGINES, Allowance, Searcher, limits_of
from tests.builders import demo_profile, nodes, workload

ASKED = PlanRequest(workload=workload(), composition=nodes("fast-0:2 fast-1:2 slow-0:2"))
MOST = 1500


@pytest.fixture(scope="module")
def pricing():
    return pricing_of(ASKED.workload, ASKED.composition, demo_profile())


def begun(pricing, seed: int = 0) -> Searcher:
    searcher = Searcher(pricing, limits_of(ASKED), seed)
    searcher.start()
    return searcher


def improved(searcher: Searcher, most: int = MOST, engines=ENGINES) -> list[str]:
    """The engines of its turns, all plans within so many."""

    def fits(plans: int) -> bool:
        return searcher.evaluations + plans <= most

    return list(searcher.improve(lambda: Allowance(fits=fits), engines, counts_plans=True))


def test_equal_seeds_price_equal_plans(pricing):
    one, two = begun(pricing), begun(pricing)
    assert improved(one) == improved(two)
    assert list(one.unplaced_candidates()) == list(two.unplaced_candidates())
    assert one.evaluations == two.evaluations <= MOST


def test_both_engines_take_turns_and_the_best_plan_never_gets_worse(pricing):
    searcher = begun(pricing)
    before = searcher.best
    assert before < math.inf
    assert set(improved(searcher, 4000)) == set(ENGINES)
    assert searcher.best <= before


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_alone_takes_all_turns(pricing, engine):
    assert set(improved(begun(pricing), engines=(engine,))) <= {engine}


def test_more_plans_are_the_same_search_continued(pricing):
    best = [math.inf]
    for most in (0, 100, 300, 700, 1500, 4000):
        searcher = begun(pricing)
        start = searcher.evaluations
        improved(searcher, most)
        assert searcher.evaluations <= max(start, most)
        best.append(searcher.best)
        assert best[-1] <= best[-2]


def test_seconds_end_a_turn(pricing):
    ticks = iter(range(10**6))
    searcher = begun(pricing)
    left = Allowance(end_s=200.0, now_s=lambda: float(next(ticks)))
    assert list(searcher.improve(lambda: left, ENGINES, counts_plans=False)) is not None
    assert next(ticks) >= 200


def test_plans_to_start_from_keep_to_what_may_be_priced(pricing):
    searcher = Searcher(pricing, limits_of(ASKED), 0)
    searcher.start(lambda plans: searcher.evaluations + plans <= 100)
    assert 0 < searcher.evaluations <= 100


def test_where_too_few_pipelines_fit_fewer_are_taken(pricing):
    many = replace(pricing, tables=pricing.tables._replace(min_replicas=100))
    searcher = begun(many)
    assert searcher.found
    assert searcher.pricing.tables.min_replicas == 1


def test_plans_of_another_pool_join(pricing):
    better, searcher = begun(pricing, 1), begun(pricing)
    improved(better)
    searcher.take(better.top_k, better.evaluations)
    assert searcher.best <= better.best


def test_where_no_plan_has_one_template_the_other_walks_have_their_turn(pricing):
    better, searcher = begun(pricing), Searcher(pricing, limits_of(ASKED), 0)
    improved(better)
    for row in range(better.found):
        if better.top_k.plans.number[row, 0] > 1:
            offer(better.top_k, row, searcher.top_k)
    assert searcher.found
    assert improved(searcher, engines=("local search",))
    assert searcher.evaluations


def test_plans_to_start_from_have_as_many_replicas_as_may_be_paid():
    there = nodes(" ".join(f"fast-{index}:3" for index in range(9)))
    asked = replace(ASKED, composition=with_prices(there, {"demo-fast": 1.0}), max_price=6.5)
    pricing = pricing_of(asked.workload, asked.composition, demo_profile())
    assert pricing is not None
    searcher = Searcher(pricing, limits_of(asked), 0)
    searcher.start()
    replicas = {
        (structure, number)
        for _, unplaced in searcher.unplaced_candidates()
        for structure, number, _ in unplaced
    }
    assert ((("demo-fast", 2),), 2) in replicas  # a node has room for one group
    assert ((("demo-fast", 1),) * 2, 3) in replicas
