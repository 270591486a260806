"""The dynamic programme against an enumeration of all pipelines, and jitted against un-jitted."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from planner.estimator.bag import new_bag
from planner.estimator.bench import new_bench
from planner.estimator.build_tables import pricing_of
from planner.estimator.elites import new_elites
from planner.estimator.fill.zone_limits import Zones, blocks_in_zones, zone_seconds
from planner.estimator.objective import Wishes
from planner.search.annealing.uniform_plans import start
from planner.search.column_generation.columns import ColumnSearch
from tests.builders import demo_profile, nodes, workload


@pytest.fixture(scope="module")
def tables():
    pricing = pricing_of(workload(), nodes("fast-0:2 slow-0:2"), demo_profile())
    assert pricing is not None
    return pricing.tables


def test_slow_options_stand_in_their_zones_only(tables):
    options = len(tables.option_tp)
    ones = np.ones(options)
    zones = Zones(2, 1, np.ones(options, np.int64), 3 * ones, ones, np.zeros((options, 2)), 100.0)
    layers = tables.layers
    assert zone_seconds(zones, 0, 0, 2, layers) == 6.0
    assert zone_seconds(zones, 0, layers - 1, layers, layers) == 3.0
    assert zone_seconds(zones, 0, 1, 3, layers) == math.inf
    free = zones._replace(only_there=np.zeros(options, np.int64))
    assert zone_seconds(free, 0, 1, 3, layers) == 4.0
    most_blocks = np.zeros((options, layers + 1), np.int64)
    blocks_in_zones(tables, free._replace(most_s=4.0), most_blocks)
    assert most_blocks[0, 0] == 2  # the last block of the model is slow, the one before is not
    assert most_blocks[0, 1] == 3  # three fast ones; one more would be slow


SCRIPT = f"from {__name__} import told; print(told())"


def told() -> str:
    """What a small search finds, as text."""
    pricing = pricing_of(workload(2), nodes("fast-0:1 slow-0:1"), demo_profile())
    assert pricing is not None
    t, wishes = pricing.tables, Wishes(2, 2, 0, math.inf, math.inf)
    elites = new_elites()
    start(t, wishes, new_bag(), new_bench(t), elites)
    search = ColumnSearch(pricing, wishes, seed=3)
    search.run(elites, lambda: False, 0)
    return json.dumps([search.priced, np.sort(elites.value)[:5].tolist()])


@pytest.mark.slow
def test_jitted_and_un_jitted_find_the_same():
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    plain = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    one, other = json.loads(plain.stdout), json.loads(told())
    assert one[0] == other[0]
    assert one[1] == pytest.approx(other[1], rel=1e-12)
