"""The time in which a batch is trained, shared among the replicas of plans that a walk found."""

from __future__ import annotations

import pytest

from planner.kernel.bag import new_bag
from planner.kernel.elites import load_elite
from planner.kernel.sharing import choose, pipeline_seconds
from planner.workload import Workload, find_model

ALONE = "a100-40=9x1,h100=7x1,a6000=6x1"
SOME = 6  # of the plans found


@pytest.fixture(scope="module", params=["llama3-8b", "gpt-neo-2.7b", "qwen3-30b-a3b"])
def found(request, walked_on):
    return walked_on(Workload(find_model(request.param), 512, 2048), ALONE)


def test_the_time_of_the_pipelines_is_the_least_in_which_the_batch_is_trained(found):
    _, pricing, kernel = found
    tables = pricing.tables
    bag = new_bag()
    for row in range(SOME):
        load_elite(kernel.elites, row, bag)
        seconds = pipeline_seconds(tables, bag)
        slowest_s = max(bag.tau_s[k, bag.chosen[k]] for k in range(bag.number[0]))
        assert choose(tables.sizes, bag, seconds, tables.batch) >= tables.batch
        sooner_s = seconds - 1e-6 * slowest_s
        assert choose(tables.sizes, bag, sooner_s, tables.batch) < tables.batch
