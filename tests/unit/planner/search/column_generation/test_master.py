"""The columns of a search: where they come from, and that each fits alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.objective import SearchLimits
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.search.column_generation.columns import ColumnSearch
from planner.search.column_generation.master import RestrictedMaster, first_prices
from planner.search.column_generation.pool import uses_of
from planner.search.worker import Worker

WISHES = SearchLimits(12, 8, 0, math.inf, math.inf)


def ask(model: str, text: str):
    workload = Workload(find_model(model), 512, 2048, "fp16")
    pricing = pricing_of(workload, Composition.from_text(text), find_profile(workload))
    assert pricing is not None
    worker = Worker(pricing, WISHES, 0)
    worker.start()
    assert worker.found
    return pricing, worker.elites


def test_templates_of_the_best_plans_become_columns_and_their_mix_a_plan():
    pricing, elites = ask("llama3-8b", "a100-80=2x4,h100=2x2")
    master = RestrictedMaster(pricing.tables, WISHES)
    master.add_plans(elites, 1)
    assert master.pool.number[0] > 0
    before = elites.value.min()
    incumbent = master.incumbent(elites)
    assert 0 < incumbent.seconds < before, "gradient sums and the optimizer step come on top"
    mixed, prices = master.solve(elites, incumbent)
    assert mixed >= 1 - 1e-9, "the best plan is one of the mixes"
    assert (prices >= 0).all()
    assert elites.value.min() <= before
    assert master.priced > 0


def test_first_prices_of_all_gpus_cost_the_batch():
    t = ask("llama3-8b", "h100=6x4,a6000=8x2")[0].tables
    prices = first_prices(t)
    lowest = [option for option in range(len(t.room)) if t.option_tp[option] == 1]
    assert prices[lowest] @ t.room[lowest] == pytest.approx(t.batch)


def test_where_money_counts_others_may_not_cost_more():
    pricing, elites = ask("llama3-8b", "a100-80=2x4,h100=2x2")
    t = pricing.tables._replace(gpu_price=np.array([1.0, 4.0]))
    incumbent = RestrictedMaster(t, WISHES._replace(counts_money=1)).incumbent(elites)
    assert 0 < incumbent.money < math.inf


@pytest.mark.slow
def test_every_column_fits_alone():
    pricing, elites = ask("qwen3-32b", "a100-40=2x2+4x1,a100-80=2x2+4x1,h100=8x1")
    t, search = pricing.tables, ColumnSearch(pricing, WISHES)
    search.run(elites, lambda: False)
    pool = search.master.pool
    uses = np.zeros((len(t.option_tp), int(pool.number[0])))
    uses_of(t, pool, uses)
    assert uses.shape[1] > 0
    assert (uses <= t.room[:, None]).all()
