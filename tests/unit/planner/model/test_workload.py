"""Workloads: known models, possible settings."""

from __future__ import annotations

import json

import pytest

from planner.errors import InvalidPlan, InvalidWorkload
from planner.model.catalogue import find_model
from planner.model.shape import ModelShape
from planner.model.workload import Workload, usual_workload
from planner.plans.plan import Plan
from tests.builders import MODEL
from tests.refusals import refused


def test_a_model_is_found_by_name_only():
    assert find_model("tiny-llama").layers == 6
    with refused(InvalidWorkload, "Unknown"):
        find_model("gpt-9")


def test_tp_must_cut_heads_ffn_and_vocabulary_evenly():
    assert [tp for tp in range(9) if MODEL.allows_tp(tp)] == [1, 2, 4]


@pytest.mark.parametrize(
    ("changes", "mistake"),
    [
        ({"layers": 0}, ("OutOfRange", None)),
        ({"heads": 5}, ("OutOfRange", "heads")),
        ({"kv_heads": 3}, ("OutOfRange", "heads")),
    ],
)
def test_an_impossible_shape_is_refused(changes, mistake):
    sizes = {"layers": 6, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 256}
    with refused(InvalidWorkload, *mistake):
        ModelShape(name="odd", **{**sizes, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"global_batch": 0},
        {"sequence_length": 0},
        {"global_batch": 2**20 + 1},
        {"sequence_length": 2**24 + 1},
        {"precision": "fp8"},
        {"zero": 2},
        {"recompute": "some"},
    ],
)
def test_an_impossible_training_setting_is_refused(changes):
    fields = {"model": MODEL, "global_batch": 32, "sequence_length": 128, **changes}
    with pytest.raises(InvalidWorkload):
        Workload(**fields)


def test_a_workload_is_plain_data():
    data = json.loads(
        json.dumps(Workload(model=MODEL, global_batch=32, sequence_length=128).to_json())
    )
    assert data["model"]["name"] == "tiny-llama"
    assert data["global_batch"] == 32


def test_recomputation_may_be_left_to_the_planner_but_a_stage_always_states_it():
    chosen = Workload(model=MODEL, global_batch=8, sequence_length=128, recompute="auto")
    assert Workload.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    row = {"gpu_type": "demo-fast", "tp": 1, "layers": 6, "recompute": "auto"}
    template = {"stages": [row], "micro_batch": 1, "micro_batches": [8]}
    with refused(InvalidPlan, "Unreadable"):
        Plan.from_json({"templates": [template], "placement": []})


def test_a_setting_of_the_wrong_kind_is_one_sentence():
    row = Workload(model=MODEL, global_batch=8, sequence_length=128).to_json()
    with refused(InvalidWorkload, "Malformed", "sequence_parallel"):
        Workload.from_json({**row, "sequence_parallel": []})


def test_memory_is_counted_as_the_worker_allocates_it_unless_the_paper_s_rule_is_named():
    row = {"model": "tiny-llama", "global_batch": 8, "sequence_length": 128}
    assert Workload.from_json(row).memory == "worker"
    assert Workload.from_json({**row, "memory": "paper"}).memory == "paper"
    assert usual_workload(MODEL).memory == "paper", "stored results and policies stand on it"
