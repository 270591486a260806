"""A question about a composition gets a plan, what the current one is worth, or a reason."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict, replace

import pytest

from heddle_operator.controller.planner_server import (
    GAVE_WAY,
    HURRY,
    LEAST_S,
    Questions,
    SearchSettings,
    answer,
    profile_of,
)
from planner.cluster.composition import Composition, Node
from planner.cost.variants import FEW_GPUS
from planner.plans.plan import Plan, faults
from planner.profiles.chosen import choose_profile
from planner.profiles.profile import PROFILES, load_profile
from planner.request import DEFAULT_EVALUATIONS
from tests.builders import placed, template

SETTINGS = SearchSettings(
    model="tiny-llama", global_batch=32, sequence_length=128, budget_evaluations=20
)
TWO = Composition(
    (Node(name="a", gpu_type="demo-fast", gpus=1), Node(name="b", gpu_type="demo-fast", gpus=1))
)
THREE = Composition((*TWO.nodes, Node(name="c", gpu_type="demo-fast", gpus=1)))


@pytest.fixture(scope="module")
def profile():
    return load_profile("tiny-llama")


def ask(profile, composition, current=None):
    question = {
        "composition": composition.to_json(),
        "current": current.to_json() if current else None,
    }
    return answer(SETTINGS, profile, question)


def test_a_plan_fits_what_was_asked_for_and_the_same_question_has_the_same_answer(profile):
    found = ask(profile, TWO)
    plan = Plan.from_json(found["plan"])
    assert faults(plan, SETTINGS.workload, TWO) == ()
    assert found["throughput_samples_s"] > 0
    assert found["memory_bytes"] > 0
    assert found["group_bytes"] == {}  # emulated GPUs have no communicators
    assert "current_samples_s" not in found
    assert ask(profile, TWO)["plan"] == found["plan"]


def test_the_measured_bytes_of_a_communicator_come_with_the_plan(profile):
    measured = {
        name: replace(kind, group_bytes=7 if name == "demo-fast" else 8)
        for name, kind in profile.types.items()
    }
    assert ask(replace(profile, types=measured), TWO)["group_bytes"] == {"demo-fast": 7}


def test_the_current_plan_is_priced_where_it_still_fits(profile):
    current = Plan.from_json(ask(profile, TWO)["plan"])
    assert ask(profile, THREE, current)["current_samples_s"] > 0
    other = Composition(
        (Node(name="x", gpu_type="demo-fast", gpus=1), Node(name="y", gpu_type="demo-fast", gpus=1))
    )
    found = ask(profile, other, current)
    assert "current_samples_s" not in found
    assert "not in the composition" in found["current_problem"]


def test_a_current_plan_without_a_profile_does_not_take_the_answer_with_it(profile):
    unprofiled = placed(template("1x3 1x3", micro_batch=32), composition=TWO)
    assert faults(unprofiled, SETTINGS.workload, TWO) == ()
    found = ask(profile, THREE, unprofiled)
    assert found["plan"] == ask(profile, THREE)["plan"]
    assert "current_samples_s" not in found
    assert "micro-batch 32" in found["current_problem"]


def test_a_composition_without_a_plan_gets_the_reason(profile):
    found = ask(profile, Composition((Node(name="a", gpu_type="demo-fast", gpus=1),)))
    assert set(found) == {"problem"}
    assert "tiny-llama needs" in found["problem"]


def test_where_money_decides_the_cheapest_sample_wins_and_both_plans_have_a_price(profile):
    nodes = (
        Node(name="fast", gpu_type="demo-fast", gpus=1, price=10.0),
        Node(name="slow-a", gpu_type="demo-slow", gpus=1, price=0.5),
        Node(name="slow-b", gpu_type="demo-slow", gpus=1, price=0.5),
    )
    both = Composition(nodes)
    question = {"composition": both.to_json(), "current": None}
    settings = replace(SETTINGS, budget_evaluations=300)
    fastest = answer(settings, profile, question)
    assert "fast" in Plan.from_json(fastest["plan"]).nodes
    cheapest = answer(
        replace(settings, objective="cost"), profile, {**question, "current": fastest["plan"]}
    )
    assert Plan.from_json(cheapest["plan"]).nodes == ("slow-a", "slow-b")
    assert (cheapest["price"], cheapest["current_price"]) == (1.0, fastest["price"])


def test_plans_limit_the_search_on_a_few_gpus_and_seconds_on_many():
    timed = replace(SETTINGS, budget_evaluations=None, budget_s=0.5)
    assert timed.most_evaluations(FEW_GPUS) == DEFAULT_EVALUATIONS
    assert timed.most_evaluations(FEW_GPUS + 1) is None
    assert SETTINGS.most_evaluations(512) == 20
    assert replace(SETTINGS, budget_evaluations=None).most_evaluations(512) is None


def test_a_job_is_planned_by_the_administrators_profiles(tmp_path):
    own = shutil.copytree(PROFILES / "tiny-llama", tmp_path / "tiny-llama")
    (own / "demo-fast.json").unlink()
    settings = replace(SETTINGS, profiles=str(tmp_path))
    found, profile = profile_of(json.dumps(asdict(settings)))
    assert found == settings
    assert "demo-fast" in ask(profile, TWO)["problem"]


def test_the_planner_is_asked_with_the_precision_and_the_recomputation_of_the_job():
    asked = SearchSettings(
        model="tiny-llama", global_batch=32, sequence_length=128, precision="bf16", recompute="auto"
    ).workload
    assert (asked.precision, asked.recompute, asked.memory) == ("bf16", "auto", "worker")


def test_the_word_after_a_question_ends_its_search_once_it_had_its_time():
    source, sink = os.pipe()
    now = [100.0]
    questions = Questions(source, lambda: now[0])
    os.write(sink, b'{"a": 1}\n')
    coming = iter(questions)
    assert next(coming) == {"a": 1}
    now[0] += 10 * LEAST_S
    assert not questions.is_hurried()
    os.write(sink, HURRY[:2])
    assert not questions.is_hurried()
    os.write(sink, HURRY[2:] + b'\n{"b": 2}\n')
    assert questions.is_hurried()
    assert next(coming) == {"b": 2}
    os.write(sink, HURRY + b"\n")
    assert not questions.is_hurried()
    now[0] += LEAST_S
    assert questions.is_hurried()
    os.close(sink)
    assert next(coming, None) is None
    os.close(source)


def test_a_word_that_came_after_the_answer_hurries_no_later_question():
    source, sink = os.pipe()
    questions = Questions(source, clock=iter([0.0, 0.0, 10 * LEAST_S]).__next__)
    os.write(sink, b'{"a": 1}\n')
    coming = iter(questions)
    next(coming)
    os.write(sink, HURRY + b'\n{"b": 2}\n')
    assert next(coming) == {"b": 2}
    assert not questions.is_hurried()
    os.close(sink)
    os.close(source)


def test_a_search_that_is_hurried_says_so_and_has_a_plan_or_none(profile):
    many = Composition.from_text("demo-fast=32x8")
    question = {"composition": many.to_json(), "current": None}
    settings = replace(SETTINGS, budget_evaluations=None, budget_s=60.0)
    began_s = time.monotonic()
    found = answer(settings, profile, question, lambda: time.monotonic() > began_s + 0.5)
    assert GAVE_WAY in found["notes"]
    assert found["plan"]
    large = replace(settings, model="llama3-8b", sequence_length=2048)
    question = {"composition": Composition.from_text("t4=1x1").to_json(), "current": None}
    with pytest.raises(KeyboardInterrupt):
        answer(large, choose_profile(large.workload).profile, question, lambda: True)
