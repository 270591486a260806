"""Figures: what a mean, a p90 and a pick regret are, and that the goals are met."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.validation.compare import (
    PricedPlan,
    expert_saving,
    figures,
    operator_reports,
    pick_regrets,
    price_measured,
    report,
)
from benchmarks.validation.datasets import read_sets

FOLDER = Path(__file__).parents[3] / "data" / "measured"
PLAN = read_sets(FOLDER)[2].plans[0]


def row(measured_s: float, priced_s: float, group: str = "g") -> PricedPlan:
    plan = replace(PLAN, seconds=measured_s, group=(1, 1, group), memory_bytes=100)
    return PricedPlan(plan, priced_s, 110.0)


def test_errors_are_relative_to_what_was_measured():
    found = figures([row(1.0, 1.1), row(2.0, 1.4)])
    assert (found.mean_error_percent, found.bias_percent) == pytest.approx((20.0, -10.0))
    assert found.memory_mean_error_percent == pytest.approx(10.0)
    assert (
        found.groups,
        found.pick_regret_mean_percent,
        found.pick_regret_max_percent,
    ) == (0, None, None)


def test_p90_is_linear_between_neighbours():
    assert figures([row(1.0, 1.0), row(1.0, 1.1)]).p90_error_percent == pytest.approx(9.0)
    assert figures([row(1.0, 1.05)]).p90_error_percent == pytest.approx(5.0)


def test_regret_compares_the_pick_with_the_fastest():
    rows = [
        row(measured, priced) for measured, priced in ((2, 5), (1.5, 1), (1, 2), (3, 9), (4, 9))
    ]
    assert pick_regrets(rows) == [0.5]
    assert pick_regrets(rows[:4]) == []
    others = [row(1.0, 1.0, "other") for _ in range(4)]
    assert pick_regrets(rows + others) == [0.5]


def test_memory_is_what_a_plan_holds_with_allocator_and_context():
    priced = price_measured(PLAN)
    assert priced.memory_bytes > 1_500_000_000
    assert abs(priced.memory_error) < 0.15


@pytest.mark.slow
def test_the_goals_of_the_cost_model_are_met_on_the_held_out_half():
    multi, single, clariden, _ = (report(measured) for measured in read_sets(FOLDER))
    assert multi.held_out.mean_error_percent <= 10
    assert single.held_out.mean_error_percent <= 9
    for measured in (multi, single):
        assert measured.held_out.p90_error_percent <= 20
        assert measured.held_out.pick_regret_mean_percent <= 5
    assert clariden.held_out.mean_error_percent <= 20
    assert clariden.held_out.memory_mean_error_percent <= 15


def test_experts_over_two_nodes_save_what_the_paper_measured():
    assert 0.50 <= expert_saving() <= 0.85


def test_operator_profiles_have_a_report_for_each_type():
    reports = operator_reports(FOLDER)
    assert len(reports) == 6
    assert all(row.mean_error_percent < 7 and row.p90_error_percent < 15 for row in reports)
    assert operator_reports(FOLDER / "nowhere") == ()
