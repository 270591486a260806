"""What plans take whose nodes hold one stage of many replicas, against plans placed so."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from planner.candidate import Judge
from planner.composition import Composition
from planner.generator import find_profile
from planner.kernel.bag import new_bag
from planner.kernel.bench import new_price_bench
from planner.kernel.by_stage import by_stage_seconds, handing_seconds
from planner.kernel.elites import load_elite
from planner.kernel.gradient_sync import sync_seconds
from planner.kernel.whole_plan import pipeline_seconds
from planner.kernel_search import KernelSearch, wishes_of
from planner.placement import place
from planner.plan import Plan
from planner.pricing_tables import pricing_of
from planner.request import PlanRequest
from planner.workload import Workload, find_model

FEW_SAMPLES = Workload(find_model("llama3-8b"), 512, 4096)  # so that gradient sums weigh
TWO_ON_A_NODE = (np.array([2]), np.array([[4.0]]), np.array([1.0]))  # GPUs, crossing, inside


def handing(tps: tuple[int, ...], kinds: tuple[int, ...] | None = None) -> float:
    """Of a template of such stages, of one type unless kinds are given."""
    gpus, crossing_s, inside_s = TWO_ON_A_NODE
    depth = len(tps)
    options = np.arange(depth)
    crossing_s = np.full((depth, depth), crossing_s[0, 0])
    kinds = kinds or (0,) * depth
    types = max(kinds) + 1
    return handing_seconds(
        np.array(kinds),
        np.array(tps),
        np.repeat(gpus, types),
        crossing_s,
        np.repeat(inside_s, types),
        options,
        depth,
    )


def test_a_stage_waits_longer_for_neighbours_that_were_on_its_node():
    assert handing((1, 1)) == 3.0
    assert handing((1, 1, 1, 1)) == 3.0  # two pairs, and a message between them that crosses anyway


def test_a_stage_between_two_neighbours_waits_for_both():
    gpus, crossing_s, inside_s = np.array([4]), np.full((1, 1), 4.0), np.array([1.0])
    options = np.zeros(3, np.int64)
    seconds = handing_seconds(np.array([0]), np.array([1]), gpus, crossing_s, inside_s, options, 3)
    assert seconds == 6.0


@pytest.mark.parametrize(("tps", "kinds"), [((1,), None), ((2, 2), None), ((1, 1), (0, 1))])
def test_where_no_stage_has_a_neighbour_on_its_node_nothing_is_added(tps, kinds):
    assert handing(tps, kinds) == 0.0


def search_of(text: str):
    """(judge, pricing, kernel) after a short walk."""
    request = PlanRequest(FEW_SAMPLES, Composition.from_text(text))
    profile = find_profile(FEW_SAMPLES)
    pricing = pricing_of(FEW_SAMPLES, request.composition, profile)
    assert pricing is not None
    kernel = KernelSearch(pricing, wishes_of(request), 0)
    kernel.start()
    kernel.walk(lambda: 100.0, 20_000, templates=2)
    return Judge(FEW_SAMPLES, request.composition, profile), pricing, kernel


def placed_by(judge: Judge, recipe, rule):
    """The candidate that a rule gives."""
    plan = judge.settle(recipe).plan
    where = place(FEW_SAMPLES.model, plan.templates, judge.composition, rule=rule)
    return judge.priced(recipe, Plan(plan.templates, where))


def test_the_better_of_both_ways_is_the_price():
    judge, pricing, kernel = search_of("h100=16x8")
    assert pricing.tables.both_ways
    won = 0
    for value, recipe in islice(kernel.recipes(), 8):
        by_replica, by_stage = (
            placed_by(judge, recipe, rule).price.iteration_s for rule in ("by replica", "by stage")
        )
        won += by_stage < by_replica
        # what messages between nodes add is known to first order only, and is some hundredths
        assert value == pytest.approx(min(by_replica, by_stage), rel=0.01)
    assert won


def test_gradient_sums_by_stage_are_the_evaluators_where_stages_fill_nodes():
    judge, pricing, kernel = search_of("h100=16x8")
    bag, work = new_bag(), new_price_bench(pricing.tables)
    met = 0
    for row in range(kernel.found):
        load_elite(kernel.elites, row, bag)
        stages = [
            int(bag.replicas[k] * pricing.tables.option_tp[option])
            for k in range(bag.number[0])
            for option in bag.options[k, : bag.depth[k]]
        ]
        if any(gpus % 8 for gpus in stages):
            continue
        met += 1
        price = placed_by(judge, kernel._recipe(row), "by stage").price
        summed_s = sync_seconds(pricing.tables, bag, work, 1)
        assert summed_s == pytest.approx(price.sync_s, rel=1e-3)
        longer_s = by_stage_seconds(pricing.tables, bag, pipeline_seconds(pricing.tables, bag))
        assert longer_s >= 0.0
    assert met


@pytest.mark.parametrize(
    ("text", "model"),
    [("h100=16x1", "llama3-8b"), ("h100=16x8", "mixtral-8x7b")],
)
def test_one_way_is_thought_of_where_plans_are_placed_one_way(text, model):
    workload = Workload(find_model(model), 512, 4096)
    pricing = pricing_of(workload, Composition.from_text(text), find_profile(workload))
    assert not pricing.tables.both_ways
