"""Figures over compositions: what counts, what does not, and what a tenth is worse than."""

from __future__ import annotations

import pytest

from benchmarks.evaluation.run import EvaluatedComposition
from benchmarks.evaluation.summary import Spread, mean_curve, summarize
from benchmarks.evaluation.trial import CurvePoint, Trial, try_out
from planner.request import Method, PlanRequest
from planner.training.composition_sets import ListedComposition
from tests.builders import demo_profile, nodes, workload

PLAN = try_out(
    PlanRequest(workload=workload(20), composition=nodes("fast-0:2"), budget_evaluations=10),
    demo_profile(),
).plan


def trial(method: Method, samples_s: float, *curve: tuple[int, float]) -> Trial:
    points = tuple(CurvePoint(*point) for point in curve)
    plan = PLAN if samples_s else None
    return Trial(
        method=method,
        throughput_samples_s=samples_s,
        seconds=samples_s / 100,
        evaluations=10,
        plan=plan,
        note="" if plan else "no room",
        curve=points,
    )


def row(reference: float, *trials: Trial) -> EvaluatedComposition:
    listed = ListedComposition("some", "demo-fast=1x2", 20)
    return EvaluatedComposition(
        listed=listed,
        reference_samples_s=reference,
        found_by="somebody",
        nearest=None,
        distance=0.0,
        trials=trials,
    )


def test_mean_tenth_percentile_and_worst():
    spread = Spread.of([100.0, 90.0, 80.0])
    assert (spread.mean, spread.worst) == (90.0, 80.0)
    assert spread.p10 == pytest.approx(82)
    late = Spread.of([1.0, 2.0, 3.0], small_is_good=True)
    assert late.worst == 3.0
    assert late.p10 == pytest.approx(2.8)


def test_a_method_without_a_plan_counts_as_nothing():
    rows = [row(100.0, trial("search", 100.0)), row(100.0, trial("search", 0.0))]
    (one,) = summarize(rows)
    assert (one.compositions, one.plans, one.note) == (2, 1, "no room")
    assert one.percent == Spread(50.0, 10.0, 0.0)


def test_a_method_that_took_no_part_has_no_figures_but_the_others_have():
    absent = Trial(
        method="policy",
        throughput_samples_s=0.0,
        seconds=0.0,
        evaluations=0,
        plan=None,
        took_part=False,
        note="no policy",
    )
    absent_too, engine = summarize([row(100.0, absent, trial("search", 50.0))])
    assert (absent_too.compositions, absent_too.percent, absent_too.note) == (0, None, "no policy")
    assert engine.percent == Spread(50.0, 50.0, 50.0)
    assert absent_too.seconds is None


def test_a_composition_that_nobody_has_a_plan_for_counts_for_nobody():
    (one,) = summarize([row(0.0, trial("search", 0.0)), row(100.0, trial("search", 80.0))])
    assert (one.compositions, one.percent.mean) == (1, 80.0)


def test_a_mean_curve_begins_where_all_have_a_plan_and_holds_what_was_best():
    rows = [
        row(100.0, trial("search", 90.0, (10, 50.0), (40, 90.0))),
        row(200.0, trial("search", 200.0, (20, 100.0), (80, 200.0))),
    ]
    assert mean_curve(rows, "search") == (
        CurvePoint(20, 50.0),
        CurvePoint(40, 70.0),
        CurvePoint(80, 95.0),
    )
    assert mean_curve(rows, "columns") == ()
