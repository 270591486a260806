"""`python -m benchmarks.validation`: a folder supplies rows, the output says how far prices are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.validation.command import validate_cost
from benchmarks.validation.facts import SHIPPED_FACTS
from planner.errors import InvalidMeasurements
from tests.refusals import refused

FOLDER = Path(__file__).parents[3] / "data" / "measured"


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(
        FOLDER / "sailor" / "validation_measured", tmp_path / "sailor/validation_measured"
    )
    return tmp_path


def run(*line: str) -> str:
    result = CliRunner().invoke(validate_cost, line, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_folder_with_some_sets_is_enough(folder):
    data = json.loads(run("--data", str(folder), "--output", "json"))
    assert [row["name"].split("/")[2] for row in data["sets"]] == ["clariden", "mit"]
    clariden = data["sets"][0]
    assert clariden["rows"] == 11
    assert clariden["mean_error_percent"] <= 20
    assert clariden["memory_mean_error_percent"] <= 15
    assert len(clariden["worst"]) == 5
    assert clariden["held_out_half"]["rows"] + clariden["fitted_half"]["rows"] == 11


def test_the_table_says_what_the_json_holds(folder):
    text = run("--data", str(folder))
    assert "clariden" in text
    assert "held-out half" in text
    assert "worst rows:" in text
    assert "the paper measured 71 %" in text


def test_facts_can_be_given(folder):
    run("--data", str(folder), "--facts", str(SHIPPED_FACTS))
    with refused(InvalidMeasurements, "Unreadable"):
        run("--data", str(folder), "--facts", str(folder / "missing.yaml"))
