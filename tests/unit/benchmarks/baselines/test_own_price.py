"""A baseline's formula on any plan: on its own plans it is the price of its ranking."""

from __future__ import annotations

import pytest

from benchmarks.baselines.interface import Budget
from benchmarks.baselines.own_price import OWN_PRICES
from benchmarks.baselines.registry import BASELINES
from tests.baselines import question

SLOW = ("sailor", "espresso")
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in OWN_PRICES
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["h100=1x4", "h100=1x4,a6000=1x4"])
def test_its_own_plans_have_the_price_of_its_ranking(name, text):
    asked = question(text, layers=8, batch=16)
    answer = BASELINES[name](asked, Budget(evaluations=300))
    assert answer.plans
    for ranked in answer.plans[:20]:
        assert OWN_PRICES[name](ranked.laid_out(), asked) == pytest.approx(ranked.own_s, rel=1e-9)


@pytest.mark.slow
def test_a_plan_that_a_formula_cannot_say_has_no_price():
    asked = question("h100=1x4", layers=8, batch=16)
    said = next(
        layout
        for ranked in BASELINES["metis"](asked, Budget(evaluations=300)).plans
        for layout in (ranked.laid_out(),)
        if not layout.beyond_plans()
        and {group.tp for stage in layout.grids[0].stages for group in stage.groups} == {2}
    )
    assert OWN_PRICES["espresso"](said, asked) is None, "TP is 1 there"
    assert OWN_PRICES["hexiscale"](said, asked) is not None
