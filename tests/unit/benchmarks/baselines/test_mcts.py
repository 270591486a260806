"""MCTS: it finds the best plan of a space that is small enough to know."""

from __future__ import annotations

import math
from itertools import product

import pytest

from benchmarks.baselines.interface import Budget, Meter
from benchmarks.baselines.mcts import _Search, plan, price_last
from planner.estimator.build_tables import pricing_of
from tests.baselines import question

pytestmark = pytest.mark.slow  # loads the estimator


def all_prices(search, templates):
    """Seconds of every plan of at most so many templates, each as often as it fits."""
    k = int(search.now.number[0])
    for depth in range(1, search.deepest + 1) if k < templates else ():
        for options in product(range(len(search.degrees)), repeat=depth):
            search.now.number[0], search.now.depth[k] = k + 1, depth
            search.now.options[k, :depth] = options
            value = price_last(search.tables, search.limits, search.now, search.work, search.top_k)
            if value < math.inf:
                yield value
                yield from all_prices(search, templates)
    search.now.number[0] = k


@pytest.mark.parametrize("text", ["h100=1x2", "h100=1x2,a100-40=1x1"])
def test_it_ends_at_the_best_plan_of_a_small_space(text):
    asked = question(text, layers=3)
    pricing = pricing_of(asked.workload, asked.composition, asked.profile)
    search = _Search(asked, pricing, Meter(Budget()))
    answer = plan(asked, Budget(evaluations=3000))
    assert answer.plans[0].own_s == min(all_prices(search, templates=2))


def test_another_seed_plays_otherwise():
    text = "h100=2x4,a100-40=2x4"
    found = [
        [one.own_s for one in plan(question(text, 16, 64, seed), Budget(evaluations=50)).plans]
        for seed in (0, 1)
    ]
    assert found[0] != found[1]
