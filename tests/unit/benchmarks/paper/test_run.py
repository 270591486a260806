"""Cells are planned once, row by row."""

from __future__ import annotations

import json

import pytest

from benchmarks.paper.by_formula import rows_of
from benchmarks.paper.cells import Cell, cells_of
from benchmarks.paper.results import results_of
from benchmarks.paper.run import left_to_plan, plan_cells
from benchmarks.paper.store import path_of, read_cell
from planner.errors import InvalidRequest
from planner.training.composition_sets import ListedComposition

SMALL = Cell("llama3-8b", ListedComposition("small", "h100=1x4,a100-80=1x4", 16, "stated"))


def test_every_figure_has_its_cells():
    assert len(cells_of("uniform")) == 12
    assert [one.gpus for one in cells_of("non-uniform")[:5]] == [52, 104, 208, 312, 416]
    assert {cell.model for cell in cells_of("experts")} == {
        "mixtral-8x7b",
        "qwen3-30b-a3b",
        "deepseek-v3-like",
    }


def test_an_unknown_figure_is_named():
    with pytest.raises(InvalidRequest) as refused:
        cells_of("unform")
    assert (refused.value.code, refused.value.field) == ("Unknown", "figure")


@pytest.mark.slow
def test_a_cell_is_planned_once_and_its_results_are_those_of_its_plans(tmp_path):
    said: list[str] = []
    plan_cells([SMALL], 0.2, said.append, tmp_path)
    assert len(said) == 9  # five baselines, Heddle three times, the end
    rows = read_cell(SMALL, tmp_path)
    assert left_to_plan([SMALL], 0.2, tmp_path) == []
    for one in results_of(SMALL, tmp_path).results:
        counted = rows[one.planner]["counted"]
        if counted is not None:
            assert one.samples_s == pytest.approx(16 / counted["iteration_s"], rel=1e-12)
            assert one.best_samples_s >= one.samples_s
    believed = {
        name: (own, ours) for name, own, ours in rows_of(results_of(SMALL, tmp_path), tmp_path)
    }
    assert {"hexiscale", "metis"} <= believed.keys()
    assert all(own > 0 for own, _ in believed.values())
    asked = {name for _, name in left_to_plan([SMALL], 0.4, tmp_path)}
    assert asked == {n for n, row in rows.items() if not row["finished"]} - {
        "heddle-0.5",
        "heddle-3",
    }


def test_some_planners_alone_are_asked(tmp_path):
    wanted = ("metis", "heddle-3")
    assert left_to_plan([SMALL], 1.0, tmp_path, planners=wanted) == [(SMALL, n) for n in wanted]
    with pytest.raises(InvalidRequest) as refused:
        left_to_plan([SMALL], 1.0, tmp_path, planners=("metsi",))
    assert (refused.value.code, refused.value.field) == ("Unknown", "planners")


def test_a_damaged_cell_is_planned_again(tmp_path):
    whole = left_to_plan([SMALL], 1.0, tmp_path)
    path_of(SMALL, tmp_path).write_text(json.dumps({"rows": {}})[:-1])
    assert left_to_plan([SMALL], 1.0, tmp_path) == whole
