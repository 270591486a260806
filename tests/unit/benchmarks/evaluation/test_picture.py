"""benchmarks/evaluation/picture.py: each method with a curve is a line with its name."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.evaluation.picture import draw_curves
from benchmarks.evaluation.trial import CurvePoint
from tests.unit.benchmarks.evaluation.test_report import ABSENT, ROWS
from tests.unit.heddle.cli.test_pictures import texts


def with_curves():
    points = (CurvePoint(16, 1.0), CurvePoint(256, 2.0))
    return [
        replace(row, trials=(ABSENT, *(replace(trial, curve=points) for trial in row.trials)))
        for row in ROWS
    ]


def test_every_method_with_a_curve_is_a_line_with_its_name(tmp_path):
    path = tmp_path / "curves.svg"
    draw_curves(path, with_curves(), "tiny-llama")
    said = set(texts(path))
    assert {"search", "columns", "plans evaluated", "best so far, % of the reference"} <= said
    assert "policy" not in said
    assert "tiny-llama, mean of 2 compositions" in said
    draw_curves(path, with_curves()[:1], "tiny-llama")
    assert "tiny-llama, two" in texts(path)


def test_equal_rows_give_equal_pictures(tmp_path):
    for name in ("one.svg", "other.svg"):
        draw_curves(tmp_path / name, with_curves(), "tiny-llama")
    assert (tmp_path / "one.svg").read_text() == (tmp_path / "other.svg").read_text()


def test_without_any_curve_there_is_a_picture_all_the_same(tmp_path):
    draw_curves(tmp_path / "curves.svg", ROWS, "tiny-llama")
    assert (tmp_path / "curves.svg").read_text().startswith("<?xml")
