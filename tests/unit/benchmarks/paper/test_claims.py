"""Verdicts follow from results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.paper.cells import cells_of
from benchmarks.paper.claims import (
    CLAIMS,
    claims_page,
    cut_off,
    drops_a5000,
    expert_gain,
    first_in,
    leads_of,
    never_falls,
    no_single_best,
    seconds_within,
)
from benchmarks.paper.results import CellResults, Result
from benchmarks.paper.tables import behind, lead, leads_by_best_plan, never_first, throughputs

CELLS = cells_of("uniform")


def result(planner, samples_s, replaced=0.0, seconds=1.0, *, finished=True):
    return Result(
        planner=planner,
        samples_s=samples_s,
        replaced_samples_s=replaced,
        best_samples_s=samples_s,
        own_samples_s=samples_s,
        rank=0,
        seconds=seconds,
        budget_s=1.0,
        plans_priced=1,
        finished=finished,
        unused_gpus=0,
        beyond="",
        gpus_by_type={},
        refused={},
    )


def cell(*results, which=0):
    return CellResults(CELLS[which], results, ("12345678",), ("2026-01-01",))


AHEAD = cell(result("sailor", 80.0, 100.0), result("amp", 50.0), result("heddle-3", 120.0))
BELOW = cell(result("metis", 100.0), result("heddle-3", 99.0), which=1)


def test_a_lead_is_over_the_better_placement_of_the_best_baseline():
    assert lead(AHEAD) == pytest.approx(1.2)
    assert lead(cell(result("sailor", 0.0), result("heddle-3", 1.0))) is None


def figure(*results, name="uniform", models=()):
    """All cells of a figure with the same results."""
    cells = [one for one in cells_of(name) if not models or one.model in models]
    return {name: [CellResults(one, results, (), ()) for one in cells]}


def test_first_and_leads():
    ahead, below = figure(*AHEAD.results), figure(*BELOW.results)
    assert first_in("uniform", 11)(ahead).holds is True
    assert first_in("uniform", 11)(below).holds is False
    assert leads_of("uniform", ("llama3-8b",), 0.1, 0.19)(ahead).holds is True
    assert leads_of("uniform", ("llama3-8b",), 0.1, 0.3)(ahead).holds is False


def test_a_figure_that_is_not_whole_tells_nothing():
    assert first_in("uniform", 1)({"uniform": [AHEAD, BELOW]}).holds is None


def test_what_is_below_is_listed_with_the_baseline_ahead():
    ((one, best, ahead),) = behind([AHEAD, BELOW])
    assert (one, best.planner) == (BELOW, "metis")
    assert ahead == pytest.approx(0.99)
    assert never_first([AHEAD, BELOW]) == ["amp", "espresso", "hexiscale"]


def test_without_results_nothing_can_be_told():
    verdicts = [claim.judge({}) for claim in CLAIMS]
    assert {verdict.holds for verdict in verdicts} == {None}
    assert "cannot be told here" in claims_page({})


def test_the_page_says_which_parts_did_not_run():
    assert "on the emulated kubelets" in claims_page({})
    assert "on the emulated kubelets" not in claims_page({}, beside=("growth-kubelets",))


def test_seconds_and_budgets():
    found = figure(result("heddle-3", 1.0, seconds=3.1))
    assert seconds_within(("uniform",), 8.4)(found).holds is True
    assert seconds_within(("uniform",), 3.0)(found).holds is False
    cut = figure(result("metis", 1.0, finished=False), result("heddle-3", 1.0))
    assert cut_off("metis", "uniform")(cut).holds is True
    assert "at 1 s of ours" in cut_off("metis", "uniform")(cut).figure
    metis, ours = cut["uniform"][0].results
    long = replace(cut["uniform"][0], results=(replace(metis, budget_s=20.0), ours))
    mixed = {"uniform": [long, *cut["uniform"][1:]]}
    assert "at 1 s to 20 s of ours" in cut_off("metis", "uniform")(mixed).figure
    one, other = figure(*AHEAD.results)["uniform"], figure(*BELOW.results)["uniform"]
    assert no_single_best({"uniform": [*one[:6], *other[6:]]}).holds is True
    assert no_single_best({"uniform": one}).holds is False


def test_who_never_falls_as_the_cluster_grows():
    cells = [
        CellResults(one, (result("amp", amp), result("heddle-3", ours)), (), ())
        for one, amp, ours in zip(cells_of("growth"), (1, 3, 2, 4, 5), (2, 3, 3, 4, 5), strict=True)
    ]
    assert never_falls({"growth": cells}).holds is True
    assert "nobody" in never_falls({"growth": [*cells[:4], cells[0]]}).figure
    assert drops_a5000({"growth": cells}).holds is True


def test_gains_of_spread_experts():
    plain = result("heddle-no-ep", 100.0)
    gain = figure(plain, result("heddle-3", 120.0), name="experts", models=("mixtral-8x7b",))
    assert expert_gain("mixtral-8x7b", wants_gain=True)(gain).holds is True
    equal = figure(plain, result("heddle-3", 100.0), name="experts", models=("qwen3-30b-a3b",))
    assert expert_gain("qwen3-30b-a3b", wants_gain=False)(equal).holds is True


def test_a_table_says_who_has_no_plan():
    text = throughputs([cell(result("hexiscale", 0.0), result("heddle-3", 10.0))])
    assert "none (1.0 s)" in text


def test_a_baseline_that_is_never_first_loses_by_its_order_or_by_its_plans():
    slow = result("amp", 1.0)
    both = [cell(slow, result("metis", 2.0)), cell(slow, result("metis", 3.0), which=1)]
    assert never_first(both)[0] == "amp"
    assert leads_by_best_plan(both, "amp") == 0
    better = replace(slow, best_samples_s=2.5)
    assert leads_by_best_plan([cell(better, result("metis", 2.0)), both[1]], "amp") == 1
