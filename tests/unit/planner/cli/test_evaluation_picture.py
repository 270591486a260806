"""The curves as a picture: a line for each method that has one, equal files for equal rows."""

from __future__ import annotations

import re
from dataclasses import replace

from planner.cli.evaluation_picture import curves_svg
from planner.evaluation.trial import CurvePoint
from tests.unit.planner.cli.test_evaluation_report import ABSENT, ROWS


def with_curves():
    points = (CurvePoint(16, 1.0), CurvePoint(256, 2.0))
    return [
        replace(row, trials=(ABSENT, *(replace(trial, curve=points) for trial in row.trials)))
        for row in ROWS
    ]


def words(svg: str) -> set[str]:
    """Matplotlib draws letters as paths and leaves the words in comments."""
    return set(re.findall(r"<!-- (.*?) -->", svg))


def test_every_method_with_a_curve_is_a_line_with_its_name():
    svg = curves_svg(with_curves(), "tiny-llama")
    assert {"search", "columns", "plans priced", "best so far, % of the reference"} <= words(svg)
    assert "policy" not in words(svg)
    assert "tiny-llama, mean of 2 compositions" in words(svg)
    assert "tiny-llama, two" in words(curves_svg(with_curves()[:1], "tiny-llama"))


def test_equal_rows_give_equal_pictures():
    assert curves_svg(with_curves(), "tiny-llama") == curves_svg(with_curves(), "tiny-llama")


def test_without_any_curve_there_is_a_picture_all_the_same():
    assert curves_svg(ROWS, "tiny-llama").startswith("<?xml")
