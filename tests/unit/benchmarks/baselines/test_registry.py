"""What all baselines have in common."""

from __future__ import annotations

import pytest

from benchmarks.baselines.interface import Budget
from benchmarks.baselines.registry import BASELINES, TITLES, find_baseline
from planner.cluster.composition import Composition
from planner.errors import InvalidComposition, InvalidRequest, UnprofiledConfiguration
from planner.plans.plan import faults
from tests.baselines import question

SMALL = "h100=1x4,a100-40=1x4"
slow = pytest.mark.slow
NAMES = [
    pytest.param(name, marks=[slow] if name in ("sailor", "espresso", "mcts") else [])
    for name in BASELINES
]


@pytest.mark.parametrize("name", NAMES)
def test_plans_come_best_first_by_its_own_formula(name):
    answer = BASELINES[name](question(SMALL, 8, 16), Budget(evaluations=200))
    assert answer.plans
    own_s = [one.own_s for one in answer.plans]
    assert own_s == sorted(own_s)


@pytest.mark.parametrize("name", NAMES)
def test_equal_questions_get_equal_answers(name):
    one, other = (
        [(p.own_s, p.laid_out()) for p in BASELINES[name](asked, Budget(evaluations=60)).plans]
        for asked in (question(SMALL, 8, 16), question(SMALL, 8, 16))
    )
    assert one == other


@pytest.mark.parametrize("name", NAMES)
def test_a_larger_budget_is_never_worse(name):
    few, many = (
        BASELINES[name](question(SMALL, 8, 16), Budget(evaluations=count)) for count in (40, 160)
    )
    assert many.plans[0].own_s <= few.plans[0].own_s
    assert few.plans_priced <= 40


@pytest.mark.parametrize("name", NAMES)
def test_what_a_plan_can_say_tiles_model_batch_and_nodes(name):
    asked = question("h100=1x4+1x2,a6000=2x2", 12, 32)
    answer = BASELINES[name](asked, Budget(evaluations=400))
    said = [plan.laid_out() for plan in answer.plans]
    plans = [one.as_plan() for one in said if not one.beyond_plans()]
    assert plans
    assert [faults(plan, asked.workload, asked.composition) for plan in plans] == [()] * len(plans)


@pytest.mark.parametrize("name", NAMES)
def test_seconds_end_a_search_before_it_has_begun(name):
    answer = BASELINES[name](question(SMALL), Budget(seconds=0.0))
    assert not answer.finished
    assert answer.plans == ()


@pytest.mark.parametrize("name", BASELINES)
def test_a_question_that_cannot_be_answered_is_refused(name):
    asked = question(SMALL)
    with pytest.raises(InvalidComposition) as refused:
        BASELINES[name](type(asked)(asked.workload, Composition(()), asked.profile), Budget())
    assert refused.value.code == "Missing"
    strange = Composition.from_text("abacus=1x2")
    with pytest.raises(UnprofiledConfiguration) as refused:
        BASELINES[name](type(asked)(asked.workload, strange, asked.profile), Budget())
    assert refused.value.code == "Unknown"


def test_an_unknown_baseline_is_named():
    with pytest.raises(InvalidRequest) as refused:
        find_baseline("metas")
    assert (refused.value.code, refused.value.field) == ("Unknown", "baseline")


def test_every_baseline_has_a_title():
    assert TITLES.keys() == BASELINES.keys()
