"""Memory of a stage: what is counted, and how many layers fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.composition import Composition
from planner.cost.memory import (
    DEEPSPEED_BUCKET,
    WORKER_BUCKET,
    StageSlot,
    boundary_bytes,
    fits,
    layers_that_fit,
    plan_group_bytes,
    slot_parameters,
    stage_memory,
    usable_bytes,
)
from planner.estimator.build_tables import pricing_of
from planner.model.catalogue import find_model
from planner.model.tensors import layer_numel, model_tensors
from planner.model.workload import Workload, usual_workload
from planner.profiles.entries import GROUP_BYTES, MOST_GROUPS
from planner.profiles.generator import find_profile
from tests.builders import MODEL, demo_profile, workload
from tests.fakes.planner import fake_plan

PARAMETERS = sum(tensor.numel for tensor in model_tensors(MODEL))


def slot(**changes) -> StageSlot:
    fields = {
        "gpu_type": "demo-fast",
        "tp": 1,
        "micro_batch": 2,
        "micro_batches": 8,
        "depth": 1,
        "index": 0,
    }
    return StageSlot(**{**fields, **changes})


def test_a_whole_replica_holds_every_parameter_with_its_gradient_and_moments():
    memory = stage_memory(workload(), demo_profile(), slot(), MODEL.layers)
    assert (memory.weights, memory.gradients, memory.optimizer) == (
        4 * PARAMETERS,
        4 * PARAMETERS,
        8 * PARAMETERS,
    )
    assert memory.communication == 4 * PARAMETERS
    assert memory.boundary == boundary_bytes(workload(), 2) == 2 * 128 * 64 * 4
    assert memory.logits == 2 * 2 * 128 * 256 * 4
    assert memory.peak_bytes == sum(
        (
            memory.weights,
            memory.gradients,
            memory.optimizer,
            memory.activations,
            memory.boundary,
            memory.logits,
            memory.communication,
        )
    )


@pytest.mark.parametrize(("precision", "each"), [("fp32", 0), ("fp16", 4), ("bf16", 0)])
def test_the_step_casts_the_gradients_of_a_bucket(precision, each):
    model = find_model("llama3-8b")
    for layers in (1, 2, 8):
        here = slot(gpu_type="h100", depth=4, index=1, micro_batch=1)
        asked = Workload(
            model=model,
            global_batch=2048,
            sequence_length=2048,
            precision=precision,
            memory="paper",
        )
        memory = stage_memory(asked, find_profile(asked), here, layers)
        numel = layers * layer_numel(model, 1, 1)
        assert memory.transient == each * min(numel, DEEPSPEED_BUCKET)
        assert memory.peak_bytes >= memory.state_bytes + memory.transient


@pytest.mark.parametrize(
    ("precision", "each"), [("fp32", (4, 4, 8)), ("bf16", (2, 4, 12)), ("fp16", (2, 4, 12))]
)
def test_the_worker_holds_fp32_gradients_in_every_precision_and_bounded_buffers(precision, each):
    model = find_model("llama3-8b")
    asked = Workload(
        model=model, global_batch=2048, sequence_length=2048, precision=precision, memory="worker"
    )
    profile = find_profile(asked)
    for index in range(4):
        here = slot(gpu_type="h100", depth=4, index=index, micro_batch=1)
        memory = stage_memory(asked, profile, here, 8)
        numel = sum(slot_parameters(model, here, 8))
        assert (memory.weights, memory.gradients, memory.optimizer) == tuple(
            numel * size for size in each
        )
        assert memory.communication == 4 * WORKER_BUCKET + boundary_bytes(asked, 1)
        assert memory.transient == 8 * WORKER_BUCKET
    alone = slot(gpu_type="h100", depth=1, micro_batch=1)
    assert stage_memory(asked, profile, alone, 32).communication == 4 * WORKER_BUCKET


def test_stages_of_a_template_share_the_parameters_out():
    held = [slot_parameters(MODEL, slot(depth=3, index=index), 2) for index in range(3)]
    assert sum(dense + experts for dense, experts in held) == PARAMETERS


@pytest.mark.parametrize(
    ("micro_batches", "depth", "index", "in_flight"),
    [(8, 4, 0, 4), (8, 4, 3, 1), (2, 4, 0, 2), (2, 4, 3, 1), (1, 4, 0, 1)],
)
def test_stage_j_from_the_end_keeps_min_of_m_and_j(micro_batches, depth, index, in_flight):
    one = slot(micro_batches=1, depth=4, index=index)
    many = slot(micro_batches=micro_batches, depth=depth, index=index)
    assert many.in_flight == in_flight
    kept = stage_memory(workload(), demo_profile(), one, 2).activations
    assert stage_memory(workload(), demo_profile(), many, 2).activations == in_flight * kept


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("tp", [1, 2])
def test_the_cap_on_layers_is_the_largest_that_fits(depth, tp):
    here = slot(depth=depth, tp=tp, micro_batch=4)
    cap = layers_that_fit(workload(), demo_profile(), here)
    assert cap == sum(
        fits(workload(), demo_profile(), here, layers) for layers in range(1, MODEL.layers + 1)
    )


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, MOST_GROUPS * GROUP_BYTES),
        ({"wire": "staged"}, 0),
        ({"memory": "paper"}, 0),
    ],
)
def test_a_job_over_nccl_leaves_the_room_of_its_communicators(change, kept):
    """As the worker does before it prepares a change; else each change of a full GPU is refused."""
    asked = replace(
        usual_workload(find_model("llama3-8b")), **{"memory": "worker", "wire": "nccl", **change}
    )
    gpu = find_profile(asked).gpu_type("h100")
    assert gpu.usable_bytes - usable_bytes(asked, gpu) == kept
    assert usable_bytes(asked, replace(gpu, name="cpu-x")) == gpu.usable_bytes
    measured = replace(gpu, group_bytes=7)
    assert usable_bytes(asked, measured) == gpu.usable_bytes - (MOST_GROUPS * 7 if kept else 0)


@pytest.mark.parametrize(("measured_bytes", "counted"), [(0, GROUP_BYTES), (7, 7)])
def test_a_rank_is_told_the_bytes_of_a_communicator_by_which_the_plan_left_room(
    measured_bytes, counted
):
    asked = replace(usual_workload(find_model("llama3-8b")), memory="worker")
    nodes, profile = Composition.from_text("h100=1x2"), find_profile(asked)
    measured = replace(profile.gpu_type("h100"), group_bytes=measured_bytes)
    profile = replace(profile, types={**profile.types, "h100": measured})
    plan = fake_plan(nodes, asked)
    assert plan_group_bytes(plan, asked, profile) == {"h100": counted}
    assert measured.usable_bytes - usable_bytes(asked, measured) == MOST_GROUPS * counted
    assert plan_group_bytes(plan, replace(asked, wire="staged"), profile) == {}


def test_every_search_leaves_the_same_room():
    """The estimator and the caps on layers count by one rule; the evaluator asks it, too."""
    asked = replace(usual_workload(find_model("llama3-8b")), memory="worker")
    composition = Composition.from_text("h100=1x2")
    tables = pricing_of(asked, composition, find_profile(asked)).tables
    gpu = find_profile(asked).gpu_type("h100")
    assert list(tables.usable_bytes) == [usable_bytes(asked, gpu)]
    slot = StageSlot(gpu_type="h100", tp=1, micro_batch=1, micro_batches=64, depth=8, index=0)
    layers = layers_that_fit(asked, find_profile(asked), slot)
    without = layers_that_fit(replace(asked, wire="staged"), find_profile(asked), slot)
    assert layers == without - 1
