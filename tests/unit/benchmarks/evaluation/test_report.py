"""What an evaluation prints: the same figures as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.evaluation.references import References
from benchmarks.evaluation.report import evaluation_text, to_json
from benchmarks.evaluation.run import EvaluationRequest, evaluate
from benchmarks.evaluation.trial import Trial
from planner.request import PlanRequest
from planner.training.composition_sets import ListedComposition
from tests.builders import demo_profile, workload

LISTED = (
    ListedComposition("two", "demo-fast=1x2", 20, "stated"),
    ListedComposition("five", "demo-fast=1x2+1x3", 20),
)
QUESTION = PlanRequest(
    workload=workload(20), composition=LISTED[0].composition, budget_evaluations=40
)
ASKED = EvaluationRequest(question=QUESTION, listed=LISTED, methods=("search", "columns"))
ROWS = evaluate(ASKED, demo_profile(), References(), lambda what: None)
ABSENT = Trial(
    method="policy",
    throughput_samples_s=0.0,
    seconds=0.0,
    evaluations=0,
    plan=None,
    took_part=False,
    note="no policy for this model",
)


def test_json_holds_every_row_and_the_summary():
    data = json.loads(json.dumps(to_json(ROWS, ASKED, demo_profile())))
    assert [row["name"] for row in data["compositions"]] == ["two", "five"]
    assert [row["gpus"] for row in data["compositions"]] == [2, 5]
    for row, found in zip(data["compositions"], ROWS, strict=True):
        for method, trial in zip(row["methods"], found.trials, strict=True):
            assert method["throughput_samples_s"] == trial.throughput_samples_s
            assert method["percent"] == pytest.approx(
                100 * trial.throughput_samples_s / row["reference_samples_s"]
            )
    means = [one["percent"]["mean"] for one in data["summary"]]
    assert means == pytest.approx(
        [
            sum(row["methods"][index]["percent"] for row in data["compositions"]) / 2
            for index in (0, 1)
        ]
    )
    assert data["profile_origin"] == "modelled"


def test_text_names_every_composition_method_and_what_the_figures_are():
    text = evaluation_text(ROWS, ASKED)
    for word in ("two", "five", "search", "columns", "stated", "% of reference", "p10", "worst"):
        assert word in text
    assert f"{ROWS[1].trials[0].throughput_samples_s:.1f}" in text
    assert "40 evaluated plans a search" in text
    timed = replace(ASKED, question=replace(QUESTION, budget_s=0.5))
    assert "0.5 s a search" in evaluation_text(ROWS, timed)
    assert text.endswith("throughput is modelled, times are measured")


def test_a_method_that_took_no_part_is_a_row_of_dashes_and_its_reason_once():
    rows = [replace(row, trials=(ABSENT, *row.trials)) for row in ROWS]
    text = evaluation_text(rows, ASKED)
    assert text.count("no policy for this model") == 1
    (line,) = [line for line in text.splitlines() if line.startswith("policy  ")]
    assert line.split() == ["policy", "0", "of", "2", *["-"] * 7]
