"""Experts of a baseline's plan, tiled by Heddle's rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.baselines import amp
from benchmarks.baselines.interface import Budget, Question
from benchmarks.baselines.judge import fits, judge
from benchmarks.baselines.retile import retiled
from planner.cluster.composition import Composition
from planner.cost.evaluate import cost_of
from planner.model.catalogue import find_model
from planner.plans.plan import faults
from planner.profiles.generator import find_profile
from tests.baselines import question
from tests.builders import work_on


def moe_question(text):
    model = replace(find_model("mixtral-8x7b"), layers=4)
    whole = work_on("mixtral-8x7b", 32, precision="fp16", memory="paper")
    return Question(replace(whole, model=model), Composition.from_text(text), find_profile(whole))


def test_a_dense_plan_stays_as_it_is():
    asked = question("h100=1x2")
    plan = amp.plan(asked, Budget()).plans[0].laid_out().as_plan()
    assert retiled(plan, asked) is plan


@pytest.mark.slow
def test_a_tiled_plan_runs_and_is_never_slower():
    asked = moe_question("h100=2x4")
    said = [one.laid_out().as_plan() for one in amp.plan(asked, Budget()).plans[:12]]
    seen = 0
    for plan in said:
        if not fits(plan, asked):
            continue
        tiled = retiled(plan, asked)
        assert tiled is not None
        assert faults(tiled, asked.workload, asked.composition) == ()
        before, after = (
            cost_of(one, asked.workload, asked.composition, asked.profile).iteration_s
            for one in (plan, tiled)
        )
        assert after <= before
        seen += 1
    assert seen


@pytest.mark.slow
def test_what_fits_in_no_other_way_fits_with_its_experts_spread():
    asked = moe_question("h100=4x1")
    answer = amp.plan(asked, Budget())
    plain = judge(answer, asked, most=12)
    spread = judge(answer, asked, lambda plan: retiled(plan, asked), most=12)
    assert spread.refused["memory"] < plain.refused["memory"]
