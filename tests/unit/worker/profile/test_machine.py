"""worker/profile/machine.py: what is measured can be planned with, and is whole or not there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from planner.errors import HeddleError
from planner.model.catalogue import find_model
from planner.profiles.entries import GpuType, LayerCost
from planner.profiles.profile import load_profile
from planner.profiles.schema import read_type_file
from tests.refusals import refused
from worker.profile import machine
from worker.profile.files import write_layers
from worker.profile.machine import PEAK_KEY, Question, measure
from worker.profile.rows import Part, Row

TINY = find_model("tiny-llama")


def question(folder, model=TINY):
    return Question(
        model=model.to_json(),
        gpu_type="cpu-x",
        processor="X 1",
        sequence_length=32,
        precision="fp32",
        cores=2,
        memory_bytes=1 << 33,
        folder=str(folder),
    )


@pytest.mark.slow
def test_the_measured_profile_is_read_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "LAYERS_S", 3.0)
    told = []
    measure(question(tmp_path / "kept"), lambda *part: told.append(part))
    found = load_profile("tiny-llama", tmp_path / "kept")
    assert (found.origin, found.sequence_length, found.precision) == ("measured", 32, "fp32")
    assert found.micro_batches("cpu-x")[0] == 1
    assert {key[0] for key in found.layers} == {"embedding", "block", "head"}
    assert all(cost.forward_s > 0 for cost in found.layers.values())
    assert found.gpu_type("cpu-x").reserve_bytes > 50 << 20
    assert found.inside_ring("cpu-x", 2).bandwidth_bytes_per_s > 0
    body = json.loads((tmp_path / "kept" / "tiny-llama" / "cpu-x.json").read_text())
    assert body["provenance"][PEAK_KEY] > 1e8
    assert [part[0] for part in told] == sorted(part[0] for part in told)
    assert told[-1][0] == told[-1][1]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.slow
def test_where_time_is_short_larger_micro_batches_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "LAYERS_S", 0.0)
    measure(question(tmp_path / "kept"), lambda *_: None)
    assert load_profile("tiny-llama", tmp_path / "kept").micro_batches("cpu-x") == (1,)
    body = json.loads((tmp_path / "kept" / "tiny-llama" / "cpu-x.json").read_text())
    assert body["provenance"]["left_out"].startswith("micro-batches 2, 4, 8, 16")


@pytest.mark.slow
def test_a_kept_row_that_contradicts_others_is_measured_again_and_the_rest_stays(tmp_path):
    file = tmp_path / "kept" / "tiny-llama" / "cpu-x.json"
    costs = {1: 1e-9, 2: 50.0, 4: 2.5e-9}
    rows = {
        (Part("block"), 1, b): Row(
            LayerCost(forward_s=s, backward_s=s, tp_communication_s=0.0, activation_bytes=1)
        )
        for b, s in costs.items()
    }
    head = {"model": "tiny-llama", "sequence_length": 32, "precision": "fp32"}
    type_ = GpuType(
        name="cpu-x",
        memory_bytes=1 << 33,
        reserve_bytes=1,
        optimizer_latency_s=1e-3,
        optimizer_s_per_parameter=1e-9,
    )
    write_layers(file, {**head, "provenance": {PEAK_KEY: 5.0}}, type_, rows)
    measure(question(tmp_path / "kept"), lambda *_: None)
    body = json.loads(file.read_text())
    found = {row["micro_batch"]: row["forward_s"] for row in body["layers"]}
    assert (found[1], found[4]) == (1e-9, 2.5e-9)
    assert found[2] < 1.0
    assert body["provenance"][PEAK_KEY] == 5.0
    assert read_type_file(file).gpu_type == type_


def test_a_model_without_layers_of_ours_leaves_nothing_behind(tmp_path):
    llama = find_model("tiny-llama")
    model = replace(llama, arithmetic=replace(llama.arithmetic, lacking=("the key 'x'",)))
    with refused(HeddleError, "Unsupported"):
        measure(question(tmp_path / "kept", model), lambda *_: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_spread_experts_are_measured_as_far_as_there_are_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "LAYERS_S", 0.0)
    measure(question(tmp_path / "kept", find_model("tiny-mixtral")), lambda *_: None)
    found = load_profile("tiny-mixtral", tmp_path / "kept")
    assert set(found.tiles) == {("cpu-x", 1, 1, 2, 1), ("cpu-x", 1, 1, 1, 2)}
