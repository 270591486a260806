"""Column generation as its caller sees it: better plans, within limits, the same every time."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.objective import SearchLimits, objective
from planner.estimator.top_k import load_top, new_top_k
from planner.estimator.unplaced_plan import new_plan, pipelines_of
from planner.estimator.whole_plan import price_per_hour
from planner.estimator.workspace import new_workspace
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.search.annealing.uniform_plans import start
from planner.search.column_generation.columns import ColumnSearch
from tests.builders import demo_profile, nodes
from tests.builders import workload as tiny

WISHES = SearchLimits(12, 8, 0, math.inf, math.inf)


def ask(text: str, limits: SearchLimits = WISHES, model: str = "llama3-8b", **rest):
    shape = find_model(model)
    workload = Workload(
        model=shape,
        global_batch=512,
        sequence_length=2048,
        precision="fp16",
        zero=0,
        recompute=shape.recompute,
    )
    pricing = pricing_of(workload, Composition.from_text(text), find_profile(workload), **rest)
    assert pricing is not None
    t, top_k = pricing.tables, new_top_k()
    start(t, limits, new_workspace(t), top_k)
    return pricing, top_k


def run(text: str, limits: SearchLimits = WISHES, **rest):
    pricing, top_k = ask(text, limits, **rest)
    before = top_k.value.min()
    search = ColumnSearch(pricing, limits)
    search.run(top_k, lambda: False)
    return pricing, top_k, before, search.master.priced


MIXED = "a100-40=4x4,h100=2x4"


def test_it_improves_on_templates_of_one_type():
    _, top_k, before, priced = run(MIXED)
    assert priced > 0
    assert top_k.value.min() < 0.97 * before


def test_equal_questions_find_equal_plans():
    one, other = run(MIXED)[1], run(MIXED)[1]
    assert np.sort(one.value).tolist() == np.sort(other.value).tolist()


def test_a_deadline_that_is_over_ends_it_at_once():
    pricing, top_k = ask(MIXED)
    before = np.sort(top_k.value).tolist()
    asked = []
    search = ColumnSearch(pricing, WISHES)
    search.run(top_k, lambda: asked.append(1) is None)
    assert len(asked) < 20
    assert np.sort(top_k.value).tolist()[0] <= before[0]


def test_limits_on_depth_and_templates_hold():
    limits = WISHES._replace(deepest=6, max_templates=2)
    _, top_k, _, _ = run(MIXED, limits)
    count = top_k.number[0]
    assert top_k.plans.number[:count].max() <= 2
    assert top_k.plans.depth[:count].max() <= 6


def test_so_many_pipelines_there_are_at_least():
    plan, (_, top_k, _, _) = new_plan(), run("a100-40=2x4,h100=1x4", min_replicas=2)
    for row in range(top_k.number[0]):
        load_top(top_k, row, plan)
        assert pipelines_of(plan) >= 2


@pytest.mark.slow
def test_a_plan_with_its_own_fillings_alone_is_no_slower_than_its_value():
    pricing, top_k, _, _ = run(MIXED)
    t, plan = pricing.tables, new_plan()
    for row in np.argsort(top_k.value)[:3].tolist():
        load_top(top_k, row, plan)
        assert objective(t, WISHES, plan, new_workspace(t), math.inf) <= top_k.value[row] * (
            1 + 1e-9
        )


def test_where_money_counts_no_plan_breaks_its_limit():
    limits = WISHES._replace(counts_money=1)
    shape = find_model("llama3-8b")
    workload = Workload(model=shape, global_batch=512, sequence_length=2048)
    pricing = pricing_of(workload, Composition.from_text(MIXED), find_profile(workload))
    t = pricing.tables._replace(gpu_price=np.array([1.0, 4.0]))
    pricing = replace(pricing, tables=t)
    top_k, plan = new_top_k(), new_plan()
    start(t, limits, new_workspace(t), top_k)
    before = top_k.value.min()
    ColumnSearch(pricing, limits).run(top_k, lambda: False)
    assert top_k.value.min() <= before
    cheap = limits._replace(most_price=20.0)
    top_k = new_top_k()
    start(t, cheap, new_workspace(t), top_k)
    ColumnSearch(pricing, cheap).run(top_k, lambda: False)
    for row in range(top_k.number[0]):
        load_top(top_k, row, plan)
        assert price_per_hour(t, plan) <= 20.0


SCRIPT = f"from {__name__} import told; print(told())"


def told() -> str:
    """What a small search finds, as text."""
    pricing = pricing_of(tiny(4), nodes("fast-0:2 fast-1:1 slow-0:2"), demo_profile())
    assert pricing is not None
    t, limits = pricing.tables, SearchLimits(2, 2, 0, math.inf, math.inf)
    top_k = new_top_k()
    start(t, limits, new_workspace(t), top_k)
    search = ColumnSearch(pricing, limits)
    search.run(top_k, lambda: False)
    return json.dumps([search.master.priced, np.sort(top_k.value)[:5].tolist()])


@pytest.mark.slow
def test_jitted_and_un_jitted_find_the_same():
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    plain = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    one, other = json.loads(plain.stdout), json.loads(told())
    assert one[0] == other[0]
    assert one[1] == pytest.approx(other[1], rel=1e-12)
