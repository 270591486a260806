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
from planner.placement import place
from planner.plan import Plan
from planner.pricing_tables import pricing_of
from planner.workload import Workload, find_model

FEW_SAMPLES = Workload(find_model("llama3-8b"), 512, 4096)  # so that gradient sums weigh
EVEN = "h100=16x8"


def handing(tps: tuple[int, ...], kinds: tuple[int, ...] | None = None, gpus: int = 2) -> float:
    """Of a template of such stages, of one type unless kinds are given, on nodes of so many GPUs.

    A message takes 4 s between nodes, 1 s inside.
    """
    depth = len(tps)
    kinds = kinds or (0,) * depth
    types = max(kinds) + 1
    crossing_s = np.full((depth, depth), 4.0)
    options = np.arange(depth)
    nodes, inside_s = np.full(types, gpus), np.full(types, 1.0)
    return handing_seconds(
        np.array(kinds), np.array(tps), nodes, crossing_s, inside_s, options, depth
    )


def test_a_stage_waits_longer_for_neighbours_that_were_on_its_node():
    assert handing((1, 1)) == 3.0
    assert handing((1, 1, 1, 1)) == 3.0  # two pairs, and a message between them that crosses anyway


def test_a_stage_between_two_neighbours_waits_for_both():
    assert handing((1, 1, 1), gpus=4) == 6.0


@pytest.mark.parametrize(("tps", "kinds"), [((1,), None), ((2, 2), None), ((1, 1), (0, 1))])
def test_where_no_stage_has_a_neighbour_on_its_node_nothing_is_added(tps, kinds):
    assert handing(tps, kinds) == 0.0


def placed_by(judge: Judge, recipe, rule):
    """The candidate that a rule gives."""
    plan = judge.settle(recipe).plan
    where = place(FEW_SAMPLES.model, plan.templates, judge.composition, rule=rule)
    return judge.priced(recipe, Plan(plan.templates, where))


def test_the_better_of_both_ways_is_the_price(walked_on):
    judge, pricing, kernel = walked_on(FEW_SAMPLES, EVEN, steps=20_000, templates=2)
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


def test_gradient_sums_by_stage_are_the_evaluators_where_stages_fill_nodes(walked_on):
    judge, pricing, kernel = walked_on(FEW_SAMPLES, EVEN, steps=20_000, templates=2)
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
        summed_s = sync_seconds(pricing.tables, bag, work, is_by_stage=True)
        assert summed_s == pytest.approx(price.sync_s, rel=1e-3)
        longer_s = by_stage_seconds(pricing.tables, bag, pipeline_seconds(pricing.tables, bag))
        assert longer_s >= 0.0
    assert met


@pytest.mark.parametrize(
    ("text", "model"),
    [("h100=16x1", "llama3-8b"), (EVEN, "mixtral-8x7b")],
)
def test_one_way_is_thought_of_where_plans_are_placed_one_way(text, model):
    workload = Workload(find_model(model), 512, 4096)
    pricing = pricing_of(workload, Composition.from_text(text), find_profile(workload))
    assert not pricing.tables.both_ways
