"""The time in which a batch is trained, shared among the replicas of plans that a walk found."""

from __future__ import annotations

from planner.estimator.sharing import choose, pipeline_seconds
from planner.estimator.top_k import load_top
from planner.estimator.unplaced_plan import new_plan

SOME = 6  # of the plans found


def test_the_time_of_the_pipelines_is_the_least_in_which_the_batch_is_trained(walked_alone):
    _, pricing, searcher = walked_alone
    tables = pricing.tables
    plan = new_plan()
    for row in range(SOME):
        load_top(searcher.top_k, row, plan)
        seconds = pipeline_seconds(tables, plan)
        slowest_s = max(plan.tau_s[k, plan.chosen[k]] for k in range(plan.number[0]))
        assert choose(tables.sizes, plan, seconds, tables.batch) >= tables.batch
        sooner_s = seconds - 1e-6 * slowest_s
        assert choose(tables.sizes, plan, sooner_s, tables.batch) < tables.batch
