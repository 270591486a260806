"""Pages are drawn from stored plans, and from nothing else."""

from __future__ import annotations

import pytest

from benchmarks.pages import faults_of_header, faults_of_names
from benchmarks.paper.__main__ import main
from benchmarks.paper.cells import cells_of
from benchmarks.paper.pages import draw
from benchmarks.paper.planners import plan_cell
from benchmarks.paper.store import stamped, write_cell


@pytest.mark.slow
def test_a_figure_is_drawn_from_what_is_stored(tmp_path):
    cell = cells_of("uniform")[0]
    rows = {name: stamped(row) for name, row in plan_cell(cell, "amp", 0.5).items()}
    write_cell(cell, rows, tmp_path / "plans")
    written = draw(tmp_path / "pages", tmp_path / "plans")
    assert {path.name for path in written} == {
        "uniform.svg",
        "uniform.md",
        "uniform.json",
        "README.md",
    }
    for path in written:
        if path.suffix == ".md":
            text = path.read_text()
            assert faults_of_header(text) == []
            assert faults_of_names(text) == []


def test_bad_input_ends_with_2_and_one_sentence(tmp_path, capsys):
    there = tmp_path / "file"
    there.write_text("")
    plans = ["plans", "--plans", str(tmp_path / "plans")]
    for given in (
        [*plans, "--figures", "unform"],
        [*plans, "--planners", "metsi"],
        ["draw", "--output", str(there / "pages")],
    ):
        assert main(given) == 2
        assert capsys.readouterr().err.count("\n") == 1
