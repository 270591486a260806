"""Measured sets: rows become plans, halves are whole groups, unknown files are refused."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from benchmarks.validation.datasets import MeasuredSet, read_sets
from planner.errors import InvalidMeasurements
from planner.plans.plan import faults

FOLDER = Path(__file__).parents[3] / "data" / "measured"
SINGLE = "vtrain/a100_single_node.csv"
MULTI = "vtrain/a100_multi_node.csv"


@cache
def sets() -> tuple[MeasuredSet, ...]:
    return read_sets(FOLDER)


def test_every_row_that_counts_is_read():
    assert {row.name: len(row.plans) for row in sets()} == {
        MULTI: 73,
        SINGLE: 873,
        "sailor/validation_measured/clariden/GPT-NEO": 11,
        "sailor/validation_measured/mit": 2,
    }


def test_every_plan_tiles_its_model_batch_and_nodes():
    for measured in sets():
        for row in measured.plans[:: max(1, len(measured.plans) // 20)]:
            assert faults(row.plan, row.workload, row.composition) == (), row.label


def test_groups_stay_whole_and_about_half_of_each_set_is_fitted():
    for measured in sets()[:3]:
        fitted = {row.group for row in measured.plans if row.fitted}
        assert not fitted & {row.group for row in measured.plans if not row.fitted}
        assert 0.3 < sum(row.fitted for row in measured.plans) / len(measured.plans) < 0.7


def test_the_half_of_a_row_does_not_depend_on_the_order_of_rows(tmp_path):
    header, *rows = (FOLDER / SINGLE).read_text().splitlines()
    (tmp_path / "vtrain").mkdir()
    (tmp_path / SINGLE).write_text("\n".join([header, *reversed(rows)]) + "\n")
    (again,) = read_sets(tmp_path)
    whole = next(row for row in sets() if row.name == SINGLE)
    assert {(r.group, r.seconds, r.fitted) for r in again.plans} == {
        (r.group, r.seconds, r.fitted) for r in whole.plans
    }


def test_memory_that_is_not_valid_is_left_out():
    clariden = sets()[2]
    lacking = [row.label for row in clariden.plans if row.memory_bytes is None]
    assert lacking == ["N8/plan_config_N8_D2.json"]
    assert not any("N4_D4" in row.label for row in clariden.plans)


def test_a_file_of_no_set_is_one_sentence(tmp_path):
    (tmp_path / "vtrain").mkdir()
    shutil.copy(FOLDER / MULTI, tmp_path / "vtrain")
    (tmp_path / "vtrain" / "h100_multi_node.csv").write_text("x\n")
    with pytest.raises(InvalidMeasurements, match=r"h100_multi_node\.csv belongs to no set"):
        read_sets(tmp_path)


def test_a_folder_without_a_set_is_one_sentence(tmp_path):
    with pytest.raises(InvalidMeasurements, match="holds none of the sets"):
        read_sets(tmp_path)
    with pytest.raises(InvalidMeasurements, match="is not a folder"):
        read_sets(tmp_path / "missing")
