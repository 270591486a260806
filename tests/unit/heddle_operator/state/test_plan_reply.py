"""The plan that `planRef` names, or one sentence of what is wrong with it."""

from __future__ import annotations

import json

import pytest

from heddle_operator.state.plan_reply import read_plan_reference
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan

PLAN = fake_plan(Composition((Node(name="a", gpu_type="demo-fast", gpus=1),)), a_job().workload)
TEXT = json.dumps(PLAN.to_json())


@pytest.mark.parametrize(
    "data", [{"plan.json": TEXT}, {"best": TEXT}, {"plan.json": TEXT, "notes": "x"}]
)
def test_the_plan_is_under_its_key_or_the_only_one(data):
    found = read_plan_reference("mine", data)
    assert (found.name, found.plan, found.problem) == ("mine", PLAN, "")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "it must hold the key plan.json"),
        ({"hunter2": "1", "a": "hunter2"}, "it must hold the key plan.json"),
        ({"plan.json": "{hunter2"}, "plan.json is not JSON"),
        ({"plan.json": "[" * 100_000}, "plan.json is not JSON"),
        ({"plan.json": '["hunter2"]'}, "plan.json is not a JSON object"),
        ({"plan.json": '{"hunter2": 1}'}, "plan.json holds no plan"),
        ({"plan.json": TEXT.replace("demo-fast", "hunter2", 1).replace("[", "7[")}, "not JSON"),
        ({"plan.json": TEXT.replace('"demo-fast"', '{"hunter2": 1}')}, "plan.json holds no plan"),
    ],
    ids=["empty", "two keys", "torn", "deep", "a list", "no plan", "not JSON", "a broken plan"],
)
def test_what_cannot_be_read_is_a_sentence(data, words):
    found = read_plan_reference("mine", data)
    assert found.plan is None
    assert found.problem
    assert words in found.problem
    assert "\n" not in found.problem
    assert "hunter2" not in found.problem, "what a ConfigMap holds is quoted nowhere"
