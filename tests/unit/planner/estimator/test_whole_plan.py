"""The kernel's price of a plan, against the one evaluator where the placement leaves no choice."""

from __future__ import annotations

import math
from itertools import islice

import pytest

from planner.estimator.bag import new_bag
from planner.estimator.bench import new_price_bench
from planner.estimator.elites import load_elite
from planner.estimator.whole_plan import iteration_seconds

SOME = 6  # of the plans found


def test_the_price_is_the_evaluators_where_every_gpu_has_a_node_of_its_own(walked_alone):
    judge, _, kernel = walked_alone
    assert kernel.found > 10
    for value, recipe in islice(kernel.recipes(), SOME):
        assert judge.settle(recipe).price.iteration_s == pytest.approx(value, rel=1e-9)


def test_a_limit_only_tells_sooner_what_is_above_it(walked_alone):
    _, pricing, kernel = walked_alone
    tables = pricing.tables
    bag, work = new_bag(), new_price_bench(tables)
    for row in range(SOME):
        load_elite(kernel.elites, row, bag)
        seconds = iteration_seconds(tables, bag, work, math.inf)
        assert seconds == pytest.approx(float(kernel.elites.value[row]), rel=1e-12)
        assert iteration_seconds(tables, bag, work, seconds) == seconds
        for share in (0.5, 0.99, 1 - 1e-9):
            assert iteration_seconds(tables, bag, work, share * seconds) == math.inf
