"""The columns of a search: where they come from, and that each fits alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.elite_set import new_elite_set
from planner.estimator.objective import SearchLimits
from planner.estimator.unplaced_plan import new_plan
from planner.estimator.workspace import new_workspace
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.search.annealing.uniform_plans import start
from planner.search.column_generation.columns import ColumnSearch
from planner.search.column_generation.incumbent import restricted
from planner.search.column_generation.master import RestrictedMaster, first_prices
from planner.search.column_generation.pool import uses_of

WISHES = SearchLimits(12, 8, 0, math.inf, math.inf)


def ask(model: str, text: str):
    workload = Workload(find_model(model), 512, 2048, "fp16")
    pricing = pricing_of(workload, Composition.from_text(text), find_profile(workload))
    assert pricing is not None
    t, elites = pricing.tables, new_elite_set()
    start(t, WISHES, new_plan(), new_workspace(t), elites)
    return pricing, elites


def test_templates_of_the_best_plans_become_columns_and_their_mix_a_plan():
    pricing, elites = ask("llama3-8b", "a100-80=2x4,h100=2x2")
    master = RestrictedMaster(pricing.tables, WISHES)
    master.add_plans(elites, 1)
    assert master.pool.number[0] > 0
    before = elites.value.min()
    incumbent = master.incumbent(elites)
    restriction = restricted(pricing.tables, incumbent, incumbent.nic_s, incumbent.longest_s)
    mixed, prices = master.solve(elites, incumbent, restriction)
    assert mixed >= 1 - 1e-9, "the best plan is one of the mixes"
    assert (prices[restriction.allowed[pricing.tables.option_type]] >= 0).all()
    assert elites.value.min() <= before
    assert master.priced > 0


def test_first_prices_of_all_gpus_cost_the_batch():
    t = ask("llama3-8b", "h100=6x4,a6000=8x2")[0].tables
    prices = first_prices(t, np.array([True, True]))
    lowest = [option for option in range(len(t.room)) if t.option_tp[option] == 1]
    assert prices[lowest] @ t.room[lowest] == pytest.approx(t.batch)
    one = first_prices(t, np.array([True, False]))
    assert (one[t.option_type == 1] == math.inf).all()
    assert (one[t.option_type == 0] < math.inf).all()


@pytest.mark.slow
def test_every_column_fits_alone():
    pricing, elites = ask("qwen3-32b", "a100-40=2x2+4x1,a100-80=2x2+4x1,h100=8x1")
    t, search = pricing.tables, ColumnSearch(pricing, WISHES, 0)
    search.run(elites, lambda: False, 1)
    pool = search.master.pool
    uses = np.zeros((len(t.option_tp), int(pool.number[0])))
    uses_of(t, pool, uses)
    assert uses.shape[1] > 0
    assert (uses <= t.room[:, None]).all()
