"""The time in which a batch is trained, shared among the replicas of plans that a walk found."""

from __future__ import annotations

from planner.estimator.bag import new_bag
from planner.estimator.elites import load_elite
from planner.estimator.sharing import choose, pipeline_seconds

SOME = 6  # of the plans found


def test_the_time_of_the_pipelines_is_the_least_in_which_the_batch_is_trained(walked_alone):
    _, pricing, kernel = walked_alone
    tables = pricing.tables
    bag = new_bag()
    for row in range(SOME):
        load_elite(kernel.elites, row, bag)
        seconds = pipeline_seconds(tables, bag)
        slowest_s = max(bag.tau_s[k, bag.chosen[k]] for k in range(bag.number[0]))
        assert choose(tables.sizes, bag, seconds, tables.batch) >= tables.batch
        sooner_s = seconds - 1e-6 * slowest_s
        assert choose(tables.sizes, bag, sooner_s, tables.batch) < tables.batch
