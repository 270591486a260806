"""Requests and answers as data."""

from __future__ import annotations

import json

from planner.plan import Plan
from planner.request import PlanRequest
from planner.search import search
from tests.builders import demo_profile, nodes, workload


def test_the_deepest_template_is_bounded_by_the_models_layers():
    assert PlanRequest(workload(), nodes("fast-0:2")).deepest == 6
    assert PlanRequest(workload(), nodes("fast-0:2"), d_max=3).deepest == 3
    assert PlanRequest(workload(), nodes("fast-0:2"), d_max=99).deepest == 6


def test_an_answer_as_json_is_a_plan_with_its_prices():
    request = PlanRequest(workload(), nodes("fast-0:2 fast-1:3"), min_holders=2)
    answer = search(request, demo_profile())
    data = json.loads(json.dumps(answer.to_json(request, demo_profile())))
    assert Plan.from_json(data) == answer.plan
    assert data["digest"] == answer.plan.digest
    assert data["profile_origin"] == "modelled"
    assert data["gpus_used"] + data["gpus_idle"] == 5
    assert data["iteration_s"] == answer.price.iteration_s
    for row in data["templates"]:
        for stage in row["stages"]:
            assert stage["stage_s"] > 0
            assert stage["peak_memory_bytes"] > 0
