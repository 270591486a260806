"""What a better plan must keep to."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.elite_set import load_elite, new_elite_set
from planner.estimator.objective import SearchLimits
from planner.estimator.unplaced_plan import new_plan
from planner.estimator.workspace import new_workspace
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.search.annealing.uniform_plans import start
from planner.search.column_generation.gradient_limit import gradient_limit, is_within
from planner.search.column_generation.incumbent import incumbent_of, restricted

WISHES = SearchLimits(12, 8, 0, math.inf, math.inf)


@pytest.fixture(scope="module")
def found():
    workload = Workload(find_model("llama3-8b"), 512, 2048)
    composition = Composition.from_text("a100-80=2x8,h100=4x1")
    pricing = pricing_of(workload, composition, find_profile(workload))
    assert pricing is not None
    t, elites = pricing.tables, new_elite_set()
    start(t, WISHES, new_plan(), new_workspace(t), elites)
    return t, elites


def test_a_plan_must_train_the_batch_in_the_time_of_the_best_one(found):
    t, elites = found
    incumbent = incumbent_of(t, WISHES, elites, new_workspace(t))
    assert incumbent.seconds == elites.value.min()
    assert incumbent.money == math.inf


def test_pipelines_have_the_time_that_gradient_sums_leave(found):
    t, elites = found
    incumbent = incumbent_of(t, WISHES, elites, new_workspace(t))
    longest_s = incumbent.longest_s
    one, other = (
        restricted(t, incumbent, incumbent.nic_s, share * longest_s) for share in (1, 0.5)
    )
    assert 0 < one.horizon_s < other.horizon_s < incumbent.seconds
    whole_s = t.layers * one.limit.block_s.max() + one.limit.ends_s.max(axis=0).sum()
    endless = restricted(t, incumbent, incumbent.nic_s, math.inf)
    assert endless.limit.most_s == pytest.approx(whole_s / 2), "no sum is longer"


def test_the_stages_of_the_plan_itself_keep_to_its_own_limit(found):
    t, elites = found
    incumbent, plan = incumbent_of(t, WISHES, elites, new_workspace(t)), new_plan()
    load_elite(elites, int(np.argmin(elites.value)), plan)
    rows = [(int(plan.depth[k]), plan.options[k], plan.blocks[k, 0]) for k in range(plan.number[0])]
    limit = gradient_limit(t, incumbent.nic_s, incumbent.longest_s * (1 + 1e-9))
    assert all(is_within(limit, *row) for row in rows)
    less = limit._replace(most_s=0.99 * limit.most_s)
    assert not all(is_within(less, *row) for row in rows)


def test_classes_with_slower_nics_stay_out(found):
    t, elites = found
    incumbent = incumbent_of(t, WISHES, elites, new_workspace(t))
    fastest = float(t.nic[:, 1].min())
    restriction = restricted(t, incumbent, fastest, 1.0)
    assert restriction.allowed.tolist() == (t.nic[:, 1] == fastest).tolist()
    assert not restriction.allowed.all()


def test_where_money_counts_others_may_not_cost_more(found):
    t, elites = found
    t = t._replace(gpu_price=np.array([1.0, 4.0]))
    by_money = incumbent_of(t, WISHES._replace(counts_money=1), elites, new_workspace(t))
    assert 0 < by_money.money < math.inf
