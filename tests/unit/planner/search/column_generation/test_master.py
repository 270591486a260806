"""The columns of a search: where they come from, and that each fits alone."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import GpuLimits
from planner.estimator.build_tables import pricing_of
from planner.estimator.objective import SearchLimits
from planner.estimator.top_k import load_top
from planner.estimator.unplaced_plan import new_plan
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.search.column_generation.columns import ColumnSearch
from planner.search.column_generation.master import (
    RestrictedMaster,
    binding_rows,
    first_prices,
    option_prices,
)
from planner.search.column_generation.pool import uses_of
from planner.search.searcher import Searcher

WISHES = SearchLimits(12, 8, 0, math.inf, math.inf)


def ask(model: str, text: str, **limits):
    workload = Workload(
        model=find_model(model), global_batch=512, sequence_length=2048, precision="fp16"
    )
    there = Composition.from_text(text)
    pricing = pricing_of(workload, there, find_profile(workload), **limits)
    assert pricing is not None
    worker = Searcher(pricing, WISHES, 0)
    worker.start()
    assert worker.found
    return pricing, worker.top_k


def test_templates_of_the_best_plans_become_columns_and_their_mix_a_plan():
    pricing, top_k = ask("llama3-8b", "a100-80=2x4,h100=2x2")
    master = RestrictedMaster(pricing.tables, WISHES)
    master.add_plans(top_k, 1)
    assert master.pool.number[0] > 0
    before = top_k.value.min()
    incumbent = master.incumbent(top_k)
    assert 0 < incumbent.seconds < before, "gradient sums and the optimizer step come on top"
    mixed, prices = master.solve(top_k, incumbent)
    assert mixed >= 1 - 1e-9, "the best plan is one of the mixes"
    assert (prices >= 0).all()
    assert top_k.value.min() <= before
    assert master.priced > 0


def test_first_prices_of_all_gpus_cost_the_batch():
    t = ask("llama3-8b", "h100=6x4,a6000=8x2")[0].tables
    prices = first_prices(t)
    lowest = [option for option in range(len(t.room)) if t.option_tp[option] == 1]
    assert prices[lowest] @ t.room[lowest] == pytest.approx(t.batch)


def test_where_money_counts_others_may_not_cost_more():
    pricing, top_k = ask("llama3-8b", "a100-80=2x4,h100=2x2")
    t = pricing.tables._replace(gpu_price=np.array([1.0, 4.0]))
    incumbent = RestrictedMaster(t, WISHES._replace(counts_money=1)).incumbent(top_k)
    assert 0 < incumbent.money < math.inf


@pytest.mark.slow
def test_every_column_fits_alone():
    pricing, top_k = ask("qwen3-32b", "a100-40=2x2+4x1,a100-80=2x2+4x1,h100=8x1")
    t, search = pricing.tables, ColumnSearch(pricing, WISHES)
    search.run(top_k, lambda: False)
    pool = search.master.pool
    uses = np.zeros((len(t.option_tp), int(pool.number[0])))
    uses_of(t, pool, uses)
    assert uses.shape[1] > 0
    assert (uses <= t.room[:, None]).all()


def test_limits_on_gpus_have_rows_of_their_own_and_mixes_keep_to_them():
    limits = GpuLimits(9, (("h100", 5),))
    pricing, top_k = ask("llama3-8b", "a100-80=2x4+2x2,h100=1x4+2x2", max_gpus=limits)
    t, search = pricing.tables, ColumnSearch(pricing, WISHES)
    assert sorted(t.limit.tolist()) == [5, 9]
    prices = first_prices(t)
    lowest = t.option_tp == 1
    assert prices[lowest].max() * 9 >= t.batch, "9 GPUs cost the batch"
    search.run(top_k, lambda: False)
    pool = search.master.pool
    uses = np.zeros((len(t.option_tp) + 2, int(pool.number[0])))
    uses_of(t, pool, uses)
    assert uses.shape[1] > 0
    assert (uses <= np.concatenate([t.room, t.limit])[:, None]).all()
    plan = new_plan()
    for row in range(int(top_k.number[0])):
        used = Counter[str]()
        load_top(top_k, row, plan)
        for k in range(int(plan.number[0])):
            for option in plan.options[k, : plan.depth[k]].tolist():
                kind, tp = pricing.options[option]
                used[kind] += tp * int(plan.replicas[k])
        assert limits.allows(used)


def test_a_dual_price_of_a_limit_counts_for_all_gpus_in_it():
    limits = GpuLimits(9, (("h100", 5),))
    pricing, _ = ask("llama3-8b", "a100-80=2x4,h100=1x4+2x2", max_gpus=limits)
    t = pricing.tables
    rows = binding_rows(t)
    duals = np.zeros(len(rows))
    duals[-2:] = 1.0, 10.0  # of the type, of all
    assert t.limit.tolist() == [5, 9]
    each = [11.0 if kind == "h100" else 10.0 for kind, _ in pricing.options]
    assert option_prices(t, rows, duals).tolist() == (t.option_tp * each).tolist()
