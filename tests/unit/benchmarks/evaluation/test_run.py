"""Methods on compositions: measured by the best plan known, which is kept from run to run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.evaluation.references import References
from benchmarks.evaluation.run import EvaluationRequest, evaluate
from planner.cluster.composition import Composition
from planner.request import PlanRequest
from planner.training.composition_sets import ListedComposition
from tests.builders import demo_profile, workload

TWO = ListedComposition("two", "demo-fast=1x2", origin="generated")
FIVE = ListedComposition("five", "demo-fast=1x2+1x3", 32)
NOBODY = ListedComposition("nobody", "h100=1x1")
ASKED = EvaluationRequest(
    question=PlanRequest(workload=workload(20), composition=TWO.composition, budget_evaluations=40),
    listed=(TWO, FIVE),
    methods=("search", "columns"),
    training=(Composition.from_text("demo-fast=1x3"), Composition.from_text("demo-slow=1x2")),
)


def run(asked: EvaluationRequest, references: References | None = None):
    said: list[str] = []
    rows = evaluate(asked, demo_profile(), references or References(), said.append)
    assert len(said) == asked.steps
    return rows


def test_no_trial_is_above_its_reference_and_one_reaches_it():
    for row in run(ASKED):
        percents = [row.percent(trial) for trial in row.trials]
        assert max(percents) == pytest.approx(100)
        assert [trial.method for trial in row.trials] == ["search", "columns"]


def test_a_line_without_a_batch_takes_that_of_the_workload():
    two, five = run(ASKED)
    assert (two.listed.batch, five.listed.batch) == (20, 32)


def test_every_row_says_which_training_composition_is_nearest():
    two, five = run(ASKED)
    assert two.to_json()["nearest_training"]["composition"] == "demo-slow=1x2"
    assert two.distance == pytest.approx(1)
    assert five.to_json()["nearest_training"]["composition"] == "demo-fast=1x3"
    assert two.to_json()["nearest_training"] == {"composition": "demo-slow=1x2", "distance": 1.0}
    (alone,) = run(replace(ASKED, listed=(TWO,), training=()))
    assert alone.to_json()["nearest_training"] is None


def test_a_method_without_a_policy_says_so_and_the_rest_goes_on(tmp_path):
    question = replace(ASKED.question, policy=tmp_path)
    asked = replace(ASKED, question=question, listed=(TWO,), methods=("policy", "search"))
    (row,) = run(asked)
    policy, engine = row.trials
    assert "no policy" in policy.note
    assert row.percent(policy) is None
    assert row.percent(engine) == pytest.approx(100)


def test_where_nobody_has_a_plan_nobody_is_judged():
    (row,) = run(replace(ASKED, listed=(NOBODY,)))
    assert row.reference_samples_s == 0
    assert [row.percent(trial) for trial in row.trials] == [None, None]


def test_curves_end_at_the_largest_budget_and_never_above_the_reference():
    (row,) = run(replace(ASKED, listed=(FIVE,), curves=(4, 40)))
    for trial in row.trials:
        assert 0 < trial.curve[-1].evaluations <= 40
        assert trial.curve[-1].throughput_samples_s <= row.reference_samples_s


@pytest.mark.slow
def test_a_reference_is_searched_once_and_kept(tmp_path):
    file = tmp_path / "best.json"
    asked = replace(ASKED, listed=(TWO,), reference_s=0.05)
    run(asked, References.read(file))
    first = References.read(file)
    (kept,) = first.rows.values()
    assert kept.searched == ("auto, seed 1, 0.05 s",)
    (row,) = run(replace(asked, methods=("search",)), References.read(file))
    assert References.read(file) == first
    assert row.reference_samples_s == kept.throughput_samples_s
