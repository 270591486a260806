"""One method on one composition: plan, time, evaluations, or why there is none; and its curve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.evaluation.trial import CurvePoint, best_so_far, curve_budgets, try_budgets, try_out
from planner.cluster.composition import Composition
from planner.request import PlanRequest
from tests.builders import demo_profile, workload

FIVE = Composition.from_text("demo-fast=1x2+1x3")
ASKED = PlanRequest(workload=workload(20), composition=FIVE, method="search", budget_evaluations=60)
FOUND = try_out(ASKED, demo_profile())


def test_a_trial_says_what_the_answer_says():
    assert FOUND.plan is not None
    assert FOUND.took_part
    assert FOUND.throughput_samples_s > 0
    assert 0 < FOUND.evaluations <= 60
    assert FOUND.seconds > 0
    assert FOUND.to_json()["plan_digest"] == FOUND.plan.digest


def test_a_method_that_finds_nothing_is_judged_and_says_why():
    one = try_out(replace(ASKED, composition=Composition.from_text("h100=1x1")), demo_profile())
    assert (one.plan, one.throughput_samples_s, one.took_part) == (None, 0.0, True)
    assert "h100" in one.note
    assert one.to_json()["plan_digest"] is None


@pytest.mark.parametrize(
    ("most", "budgets"),
    [(0, ()), (1, (1,)), (16, (16,)), (17, (16, 17)), (1000, (16, 64, 256, 1000))],
)
def test_budgets_grow_up_to_the_most(most, budgets):
    assert curve_budgets(most) == budgets


def test_a_curve_never_falls_and_has_a_point_for_each_number_of_plans():
    points = [(300, 2.0), (16, 1.0), (64, 3.0), (16, 1.5)]
    trials = [replace(FOUND, evaluations=n, throughput_samples_s=best) for n, best in points]
    nothing = replace(FOUND, plan=None, evaluations=1, throughput_samples_s=0.0)
    assert best_so_far([*trials, nothing]) == (
        CurvePoint(16, 1.5),
        CurvePoint(64, 3.0),
        CurvePoint(300, 3.0),
    )
    assert best_so_far([]) == ()


def test_larger_budgets_price_more_plans():
    few, many = try_budgets(replace(ASKED, budget_s=9.0), demo_profile(), (4, 60), FOUND)
    assert few.evaluations < many.evaluations <= 60
    assert few.throughput_samples_s <= many.throughput_samples_s


@pytest.mark.slow
def test_a_method_that_builds_plans_gets_rollouts_for_its_budget():
    asked = replace(ASKED, method="random", rollouts=8)
    first = try_out(asked, demo_profile())
    assert first.plan is not None
    few, many = try_budgets(asked, demo_profile(), (16, 256), first)
    assert few.evaluations == pytest.approx(16, rel=0.75)
    assert many.evaluations == pytest.approx(256, rel=0.5)


def test_without_a_first_plan_there_are_no_more_trials():
    nothing = replace(FOUND, plan=None)
    assert try_budgets(ASKED, demo_profile(), (4, 60), nothing) == ()


def test_a_method_without_a_policy_took_no_part(tmp_path):
    one = try_out(replace(ASKED, method="policy", policy=tmp_path), demo_profile())
    assert (one.plan, one.took_part) == (None, False)
    assert "no policy" in one.note
