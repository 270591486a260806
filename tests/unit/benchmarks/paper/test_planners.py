"""Who plans a cell, and what becomes of a baseline's plan once its experts are tiled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.baselines import amp
from benchmarks.baselines.interface import Budget, Question
from benchmarks.baselines.judge import judge
from benchmarks.paper.cells import cell_of
from benchmarks.paper.planners import (
    _judged_row,
    budget_of,
    planners_of,
    retiled_row,
    searches,
)
from planner.cluster.composition import Composition


def test_a_dense_cell_has_no_retiled_plans():
    assert not any(name.endswith("-moe") for name in planners_of(cell_of("llama3-8b", "two-64")))
    experts = planners_of(cell_of("mixtral-8x7b", "two-64"))
    assert {"sailor-moe", "heddle-no-ep"} <= set(experts)
    assert searches("sailor-moe") == "sailor"


def test_heddle_has_budgets_of_its_own():
    assert [budget_of(name, 20.0) for name in ("heddle-0.5", "heddle-3", "metis")] == [0.5, 3, 20]


@pytest.mark.slow
def test_a_retiled_plan_is_never_slower_than_the_plan_that_counts():
    whole = cell_of("mixtral-8x7b", "two-64").question()
    few = replace(whole.workload, model=replace(whole.workload.model, layers=4), global_batch=32)
    asked = Question(few, Composition.from_text("h100=2x4"), whole.profile)
    row = _judged_row(judge(amp.plan(asked, Budget()), asked), asked)
    assert row["counted"] is not None
    tiled = retiled_row(row, asked)
    assert tiled["counted"]["iteration_s"] <= row["counted"]["iteration_s"]
    assert tiled["counted"]["rank"] == row["counted"]["rank"]
    assert retiled_row(row | {"counted": None}, asked)["counted"] is None
