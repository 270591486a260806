"""Heddle's evaluator on the plans of a baseline."""

from __future__ import annotations

import pytest

from benchmarks.baselines import amp, metis
from benchmarks.baselines.interface import Answer, Budget
from benchmarks.baselines.judge import fits, judge
from planner.cost.evaluate import cost_of
from tests.baselines import question


@pytest.mark.parametrize("baseline", [amp, metis])
def test_the_first_that_fits_counts_and_the_best_is_never_slower(baseline):
    asked = question("a100-40=1x4,h100=1x4", layers=16, batch=32)
    answer = baseline.plan(asked, Budget(evaluations=400))
    found = judge(answer, asked)
    assert found.counted is not None
    assert found.best is not None
    assert found.best.iteration_s <= found.counted.iteration_s
    for ranked in answer.plans[: found.counted.rank]:
        said = ranked.laid_out()
        assert said.beyond_plans() or not fits(said.as_plan(), asked)


def test_a_ranking_is_the_baselines_own():
    asked = question("a100-40=1x4,h100=1x4", layers=16, batch=32)
    answer = amp.plan(asked, Budget())
    before = [(one.own_s, one.laid_out()) for one in answer.plans]
    judge(answer, asked)
    assert [(one.own_s, one.laid_out()) for one in answer.plans] == before


def test_a_plan_is_priced_where_the_baseline_puts_it_and_where_heddle_does():
    asked = question("h100=2x2,a100-40=2x2", layers=8, batch=16)
    found = judge(amp.plan(asked, Budget()), asked).counted
    assert found is not None
    cost = cost_of(found.plan, asked.workload, asked.composition, asked.profile)
    assert found.iteration_s == cost.iteration_s
    assert found.replaced_s is not None


def test_nothing_fits_where_memory_is_too_small():
    asked = question("a100-40=1x1", layers=32)
    found = judge(amp.plan(asked, Budget()), asked)
    assert (found.counted, found.best) == (None, None)
    assert found.refused["memory"] > 0


def test_an_empty_answer_has_no_plan():
    found = judge(Answer((), 0, 0.0, True), question("h100=1x1"))
    assert (found.counted, found.looked_at) == (None, 0)
