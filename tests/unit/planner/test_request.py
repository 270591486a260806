"""Requests and answers as data."""

from __future__ import annotations

import json
from dataclasses import replace

from click.testing import CliRunner

from heddle.commands.cost import cost
from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import GpuLimits
from planner.cost.evaluate import cost_of
from planner.cost.money import with_prices
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.placement.place import place
from planner.plans.plan import FilledTemplate, Plan, Stage
from planner.profiles.generator import find_profile
from planner.request import MarginalGain, PlanAnswer, PlanRequest, SearchStep
from planner.search.driver import search
from tests.builders import demo_profile, nodes, workload

REQUEST = PlanRequest(workload=workload(), composition=nodes("fast-0:2 fast-1:3"), min_holders=2)
KEYS = {
    "workload",
    "composition",
    "profile_digest",
    "profile_origin",
    "link_origin",
    "edges",
    "throughput_samples_s",
    "iteration_s",
    "simulated_s",
    "planning_s",
    "search_steps",
    "gpus_used",
    "gpus_idle",
    "idle",
    "holders_min",
    "bytes_to_move",
    "notes",
    "templates",
    "placement",
    "digest",
}
STAGE_KEYS = {"gpu_type", "tp", "layers", "recompute", "tiling", "stage_s", "peak_memory_bytes"}


def as_data(answer: PlanAnswer, request: PlanRequest = REQUEST) -> dict:
    return json.loads(json.dumps(answer.to_json(request, demo_profile())))


def test_the_deepest_template_is_bounded_by_the_models_layers():
    assert PlanRequest(workload=workload(), composition=nodes("fast-0:2")).deepest == 6
    assert (
        PlanRequest(workload=workload(), composition=nodes("fast-0:2"), max_stages=3).deepest == 3
    )
    assert (
        PlanRequest(workload=workload(), composition=nodes("fast-0:2"), max_stages=99).deepest == 6
    )


def test_an_answer_as_json_is_a_plan_with_its_prices():
    answer = search(REQUEST, demo_profile())
    data = as_data(answer)
    assert set(data) == KEYS
    assert Plan.from_json(data) == answer.plan
    assert data["digest"] == answer.plan.digest
    assert data["profile_origin"] == "modelled"
    assert data["gpus_used"] + data["gpus_idle"] == 5
    assert data["iteration_s"] == answer.cost.iteration_s
    assert set(data["placement"][0]) == {"template", "replica", "stage", "node", "gpus"}
    for row in data["templates"]:
        assert set(row) == {"replicas", "micro_batch", "micro_batches", "stages"}
        assert len(row["micro_batches"]) == row["replicas"]
        for stage in row["stages"]:
            assert set(stage) == STAGE_KEYS
            assert stage["tiling"] is None
            assert stage["stage_s"] > 0
            assert stage["peak_memory_bytes"] > 0


def test_a_stage_of_the_search_says_method_seconds_evaluations_and_throughput():
    assert SearchStep("columns", 7, 8.5, 0.25).to_json() == {
        "method": "columns",
        "seconds": 0.25,
        "evaluations": 7,
        "throughput_samples_s": 8.5,
    }


def test_money_and_gains_are_there_when_they_are_known_or_asked():
    answer = search(REQUEST, demo_profile())
    priced = replace(REQUEST, composition=with_prices(REQUEST.composition, {"demo-fast": 2.0}))
    money = as_data(answer, priced)
    assert set(money) - KEYS == {"price_per_hour", "money_per_sample"}
    assert money["price_per_hour"] == 10.0
    asked = replace(REQUEST, wants_marginal=True)
    gained = replace(answer, marginal=(MarginalGain("demo-fast", 2, 3.5),))
    assert as_data(gained, asked)["marginal"] == [
        {"gpu_type": "demo-fast", "gpus": 2, "gain_samples_s": 3.5}
    ]
    assert as_data(answer, asked)["marginal"] == []


def test_experts_are_said_as_ep_etp_and_edp():
    asked = Workload(
        model=find_model("mixtral-8x7b"), global_batch=16, sequence_length=2048, precision="fp16"
    )
    composition, profile = Composition.from_text("h100=4x8"), find_profile(asked, off_grid=True)
    stages = (
        Stage(gpu_type="h100", tp=4, layers=16, recompute="full", ep=8, etp=1),
        Stage(gpu_type="h100", tp=4, layers=16, recompute="full"),
    )
    template = FilledTemplate(stages, 1, (8, 8))
    where = place(asked.model, (template,), composition)
    assert where is not None
    plan = Plan((template,), where)
    priced = cost_of(plan, asked, composition, profile)
    answer = PlanAnswer(
        plan=plan,
        cost=priced,
        holders_min=1,
        search_steps=(),
        planning_s=0.0,
        bytes_to_move=None,
        idle=(),
    )
    data = answer.to_json(PlanRequest(workload=asked, composition=composition), profile)
    assert [stage["tiling"] for stage in data["templates"][0]["stages"]] == [
        {"ep": 8, "etp": 1, "edp": 1},
        {"ep": 1, "etp": 4, "edp": 2},
    ]
    assert Plan.from_json(data) == plan
    done = CliRunner().invoke(cost, ["-", "--output", "json"], input=json.dumps(data))
    assert json.loads(done.stdout)["iteration_s"] == data["iteration_s"]


def test_a_limit_on_gpus_is_there_when_it_was_asked():
    limited = replace(REQUEST, max_gpus=GpuLimits(None, (("demo-fast", 5),)))
    data = as_data(search(REQUEST, demo_profile()), limited)
    assert set(data) - KEYS == {"max_gpus"}
    assert GpuLimits.from_json(data["max_gpus"]) == limited.max_gpus
