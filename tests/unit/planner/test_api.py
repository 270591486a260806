"""The planner as a function: the same search as the command, and refusals before it starts."""

from __future__ import annotations

import inspect
import itertools
import math
import subprocess
import sys
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest

import planner
from planner.api import NEEDS_ZERO, _check_answer, answer, check_request
from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import GpuLimits
from planner.cost.evaluate import cost_of
from planner.cost.money import with_prices
from planner.errors import HeddleError, Infeasible, InvalidComposition, InvalidRequest, NoPolicy
from planner.request import DEFAULT_BUDGET_S, PlanAnswer, PlanRequest
from planner.search.driver import search
from tests.builders import MODEL, demo_profile, nodes, placed, template, workload
from tests.refusals import refused

SMALL = PlanRequest(
    workload=workload(), composition=nodes("fast-0:2 fast-1:1"), budget_evaluations=300
)


def test_the_function_is_the_search():
    found = planner.plan(
        workload(), SMALL.composition, demo_profile(), budget_evaluations=300, min_holders=2
    )
    assert isinstance(found, PlanAnswer)
    assert found.plan == search(replace(SMALL, min_holders=2), demo_profile()).plan


def test_the_profile_may_be_left_out():
    found = planner.plan(workload(), SMALL.composition, budget_evaluations=300)
    assert found.plan == search(SMALL, demo_profile()).plan


def test_nodes_of_a_gpu_type_without_a_profile_stay_idle():
    strange = (*SMALL.composition.nodes, Node(name="strange-0", gpu_type="strange", gpus=4))
    found = answer(replace(SMALL, composition=Composition(strange)), demo_profile())
    assert found.notes == ("GPU type 'strange' has no profile for this model; its nodes stay idle",)


def test_a_budget_stands_alone_and_without_one_the_default_ends_the_search():
    many = replace(SMALL, composition=nodes("fast-0:9 fast-1:9"), budget_evaluations=None)
    assert (many.most_seconds, many.most_evaluations) == (2.0, sys.maxsize)
    few = replace(SMALL, budget_evaluations=None)
    assert (few.most_seconds, few.most_evaluations) == (2.0, 3000)
    assert (SMALL.most_seconds, SMALL.most_evaluations) == (math.inf, 300)
    timed = replace(few, budget_s=0.5)
    assert (timed.most_seconds, timed.most_evaluations) == (0.5, sys.maxsize)
    both = replace(SMALL, budget_s=0.5)
    assert (both.most_seconds, both.most_evaluations) == (0.5, 300)


def test_the_function_and_the_request_have_the_same_fields_and_defaults():
    asked = inspect.signature(planner.plan).parameters
    defaults = {field.name: field.default for field in fields(PlanRequest)}
    assert set(asked) - {"profile"} == set(defaults)
    for name, default in defaults.items():
        if default is not MISSING:
            assert asked[name].default == default
            assert asked[name].kind is inspect.Parameter.KEYWORD_ONLY


def test_planning_changes_nothing_of_the_process_that_calls_it():
    code = (
        "import gc, subprocess, numba, planner; "
        "subprocess.run = subprocess.Popen = None; "
        "before = numba.config.CACHE_DIR, gc.get_threshold(), gc.get_freeze_count(); "
        "m = planner.find_model('tiny-llama'); "
        "w = planner.Workload(model=m, global_batch=20, sequence_length=128); "
        "c = planner.Composition.from_text('demo-fast=1x2'); "
        "planner.plan(w, c, budget_evaluations=50); "
        "now = numba.config.CACHE_DIR, gc.get_threshold(), gc.get_freeze_count(); "
        "assert now == before, (before, now)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_face_of_the_planner_is_plain_functions_and_types():
    from planner.api import plan

    assert planner.plan is plan
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        _ = planner.plam


def test_importing_the_planner_is_light_and_planning_never_reaches_torch():
    code = (
        "import sys, planner; "
        "assert not [m for m in sys.modules if m.startswith('planner.')], 'not lazy'; "
        "assert 'numpy' not in sys.modules; "
        "m = planner.find_model('tiny-llama'); "
        "w = planner.Workload(model=m, global_batch=20, sequence_length=128); "
        "c = planner.Composition.from_text('demo-fast=1x2'); "
        "print(planner.plan(w, c, budget_evaluations=50).plan.digest); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == 16


@pytest.mark.parametrize(
    ("wishes", "error", "mistake"),
    [
        ({"budget_s": 0}, InvalidRequest, ("OutOfRange", "budget_s")),
        ({"budget_evaluations": 0}, InvalidRequest, ("OutOfRange", "budget_evaluations")),
        ({"min_throughput": -1}, InvalidRequest, ("OutOfRange", "min_throughput")),
        ({"max_price": -1}, InvalidRequest, ("OutOfRange", "max_price")),
        ({"min_holders": 0}, InvalidRequest, ("OutOfRange", "min_holders")),
        ({"max_templates": 0}, InvalidRequest, ("OutOfRange", "max_templates")),
        ({"max_stages": 0}, InvalidRequest, ("OutOfRange", "max_stages")),
        (
            {"method": "policy", "policy": Path("nowhere")},
            NoPolicy,
            ("Missing", None),
        ),
        ({"method": "auto", "policy": Path("nowhere")}, NoPolicy, ("Missing", None)),
        ({"budget_s": math.inf}, InvalidRequest, ("OutOfRange", "budget_s")),
        ({"budget_s": math.nan}, InvalidRequest, ("OutOfRange", "budget_s")),
        ({"budget_evaluations": 10**23}, InvalidRequest, ("OutOfRange", "budget_evaluations")),
        ({"min_throughput": math.inf}, InvalidRequest, ("OutOfRange", "min_throughput")),
        ({"max_price": math.nan}, InvalidRequest, ("OutOfRange", "max_price")),
        ({"seed": -1}, InvalidRequest, ("OutOfRange", "seed")),
        ({"threads": 65}, InvalidRequest, ("OutOfRange", "threads")),
        ({"rollouts": 10**11}, InvalidRequest, ("OutOfRange", "rollouts")),
        ({"objective": "money"}, InvalidRequest, ("Unknown", "objective")),
        ({"method": "Search"}, InvalidRequest, ("Unknown", "method")),
        ({"max_stages": 33}, InvalidRequest, ("OutOfRange", "max_stages")),
        ({"max_templates": 9}, InvalidRequest, ("OutOfRange", "max_templates")),
        ({"max_stages": 2.5}, InvalidRequest, ("Malformed", "max_stages")),
        ({"min_holders": True}, InvalidRequest, ("Malformed", "min_holders")),
        ({"objective": "cost"}, InvalidComposition, ("PriceMissing", "prices")),
        ({"max_price": 5}, InvalidComposition, ("PriceMissing", "prices")),
    ],
)
def test_a_request_that_contradicts_itself_is_refused_before_the_search(wishes, error, mistake):
    with refused(error, *mistake) as caught:
        check_request(replace(SMALL, **wishes))
    assert isinstance(caught.value, HeddleError)
    assert "\n" not in str(caught.value)


def test_an_answer_below_the_throughput_that_was_asked_is_refused_with_the_amount():
    reached = search(SMALL, demo_profile()).throughput_samples_s
    assert answer(replace(SMALL, min_throughput=reached / 2), demo_profile())
    with refused(Infeasible, "OutOfRange", "min_throughput"):
        answer(replace(SMALL, min_throughput=2 * reached), demo_profile())


def test_an_answer_above_the_price_that_was_asked_is_refused_with_the_amount():
    priced = replace(SMALL, composition=with_prices(SMALL.composition, {"demo-fast": 2.0}))
    assert answer(replace(priced, max_price=6.0), demo_profile())
    with pytest.raises(Infeasible):
        answer(replace(priced, max_price=0.5), demo_profile())


def test_gains_are_part_of_the_answer_only_when_asked():
    assert answer(SMALL, demo_profile()).marginal == ()
    asked = answer(replace(SMALL, wants_marginal=True), demo_profile())
    assert [gain.gpu_type for gain in asked.marginal] == ["demo-fast"]


def test_auto_takes_zero_where_no_plan_without_it_fits():
    asked = replace(SMALL, composition=nodes("fast-0:2 fast-1:2"), max_stages=1)
    wide = placed(template(f"2x{MODEL.layers}", 1, (16, 16)), composition=asked.composition)
    of_plan = asked.workload, asked.composition, demo_profile()
    without, owned = (cost_of(wide.with_zero(zero), *of_plan) for zero in (0, 1))
    between = (without.peak_memory_bytes + owned.peak_memory_bytes) // 2
    assert owned.peak_memory_bytes < between < without.peak_memory_bytes
    known = demo_profile().types["demo-fast"]
    small = replace(known, memory_bytes=known.memory_bytes - known.usable_bytes + between)
    tight = replace(demo_profile(), types={**demo_profile().types, "demo-fast": small})
    with pytest.raises(Infeasible):
        answer(asked, tight)
    auto = replace(asked, zero_where_needed=True)
    found = answer(auto, tight)
    assert found.plan.zero == 1
    assert found.to_json(auto, demo_profile())["workload"]["zero"] == 1
    assert NEEDS_ZERO in found.notes
    assert found.holders_min == 1
    assert answer(auto, demo_profile()).plan.zero == 0


def test_auto_keeps_a_plan_with_zero_that_no_other_one_beats():
    """Without ZeRO a search of a few plans finds none as fast as the one that runs."""
    asked = replace(SMALL, composition=nodes("fast-0:2 fast-1:2"))
    best = answer(
        replace(asked, workload=replace(asked.workload, zero=1), budget_evaluations=3000),
        demo_profile(),
    )
    auto = replace(asked, zero_where_needed=True, current=best.plan, budget_evaluations=1)
    found = answer(auto, demo_profile())
    assert found.throughput_samples_s >= best.throughput_samples_s


def test_no_answer_over_a_limit_on_gpus_gets_through():
    limited = replace(SMALL, max_gpus=GpuLimits(2))
    assert answer(limited, demo_profile()).plan.gpus == 2
    unlimited = search(SMALL, demo_profile())
    assert unlimited.plan.gpus == 3
    with refused(Infeasible, "OutOfRange", "max_gpus"):
        _check_answer(limited, unlimited)


def test_with_and_without_zero_share_the_usual_seconds():
    plan = placed(template("1x3 1x3", 2, (16,)), composition=SMALL.composition).with_zero(1)
    asked = replace(SMALL, zero_where_needed=True, current=plan, budget_evaluations=None)
    read = itertools.count()
    answer(asked, demo_profile(), lambda: next(read) * 0.01)
    assert next(read) * 0.01 < 1.5 * DEFAULT_BUDGET_S
