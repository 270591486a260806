"""Modelled profiles: files are the generator's output, entries off the grid are made alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.gpu_types import HARDWARE, find_gpu
from planner.errors import UnprofiledConfiguration
from planner.model.catalogue import MODELS, find_model
from planner.model.workload import DEMO_MODELS, Workload
from planner.profiles.generator import (
    MICRO_BATCHES,
    TP_DEGREES,
    find_profile,
    generate,
    gpu_type,
    profile_files,
)
from planner.profiles.profile import PROFILES, load_profile
from tests.refusals import refused

LLAMA = find_model("llama3-8b")


@pytest.mark.parametrize("name", [name for name in MODELS if name not in DEMO_MODELS])
def test_the_committed_files_are_the_generators_output_bit_for_bit(name):
    texts = profile_files(MODELS[name])
    folder = PROFILES / name
    assert {path.name for path in folder.glob("*.json")} == set(texts)
    for file, text in texts.items():
        assert (folder / file).read_text() == text, (
            f"run python -m planner.profiles.generator for {file}"
        )


def test_the_grid_has_every_type_tp_and_micro_batch():
    profile = load_profile("llama3-8b")
    assert set(profile.types) == set(HARDWARE)
    for name in HARDWARE:
        assert profile.tp_degrees(name) == TP_DEGREES
        assert profile.micro_batches(name) == MICRO_BATCHES
    assert (profile.origin, profile.link_origin) == ("modelled", "assumed")


def test_a_file_and_the_generator_hold_the_same_entry():
    loaded, made = load_profile("mixtral-8x7b"), generate(find_model("mixtral-8x7b"), 2048, "fp16")
    for key in (("moe_block", "h100", 2, 4), ("head", "v100-32", 8, 16)):
        assert loaded.layer_cost(*key) == made.layer_cost(*key)
    assert loaded.digest == made.digest


def test_entries_off_the_grid_are_made_when_asked_and_lie_between_their_neighbours():
    profile = generate(LLAMA, 2048, "fp16")
    before, odd, after = (profile.layer_cost("block", "h100", 1, b) for b in (2, 3, 4))
    assert before.forward_s < odd.forward_s < after.forward_s
    assert 3 not in profile.micro_batches("h100")
    with refused(UnprofiledConfiguration, "Missing"):
        load_profile("llama3-8b").layer_cost("block", "h100", 1, 3)


def test_an_entry_that_cannot_be_is_refused():
    profile = generate(find_model("gpt-neo-2.7b"), 2048, "fp16")
    with pytest.raises(UnprofiledConfiguration):
        profile.layer_cost("block", "h100", 3, 1)
    with pytest.raises(UnprofiledConfiguration):
        profile.layer_cost("moe_block", "h100", 1, 1)


def test_a_tiling_is_made_where_the_experts_can_be_cut_so():
    profile = generate(find_model("mixtral-8x7b"), 2048, "fp16")
    assert profile.tiled_cost("h100", 4, 2, 1, 4) == profile.layer_cost("moe_block", "h100", 4, 2)
    assert profile.tiled_cost("h100", 4, 2, 4, 1).forward_s > 0
    with refused(UnprofiledConfiguration, "Missing"):
        profile.tiled_cost("h100", 4, 2, 3, 1)


def test_a_length_or_precision_that_no_file_has_is_generated_and_cached():
    asked = Workload(model=LLAMA, global_batch=8, sequence_length=4096, precision="bf16")
    profile = find_profile(asked)
    assert (profile.sequence_length, profile.precision) == (4096, "bf16")
    assert find_profile(asked) is profile
    profile.require(asked)
    parallel = Workload(
        model=LLAMA, global_batch=8, sequence_length=2048, precision="fp16", sequence_parallel=True
    )
    with_it, without = find_profile(parallel), load_profile("llama3-8b")
    key = ("block", "h100", 8, 4)
    assert with_it.layers[key].activation_bytes < without.layers[key].activation_bytes
    with refused(UnprofiledConfiguration, "Mismatch"):
        without.require(parallel)


def test_a_named_folder_is_read_and_nothing_is_made_up(tmp_path):
    with refused(UnprofiledConfiguration, "Missing"):
        find_profile(
            Workload(model=LLAMA, global_batch=8, sequence_length=2048, precision="fp16"), tmp_path
        )


def test_the_reserve_is_six_percent_and_one_and_a_half_gigabytes():
    gpu = find_gpu("h100")
    assert gpu_type(gpu).reserve_bytes == round(0.06 * gpu.memory_bytes) + 1_500_000_000


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v3-like"])
def test_backward_is_not_shorter_than_forward_where_the_device_sets_the_pace(name):
    profile = load_profile(name)
    for (kind, _, tp, micro_batch), cost in profile.layers.items():
        if kind in ("block", "moe_block"):
            launches_alone = micro_batch < 4 * tp  # the host needs longer for a forward operator
            assert launches_alone or cost.backward_s >= cost.forward_s
            assert cost.activation_bytes >= cost.input_bytes
            assert cost.activation_bytes >= cost.attention_bytes


@pytest.mark.parametrize("name", DEMO_MODELS)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_demos_types_are_as_fast_in_low_precision_and_keep_half_as_much(name, precision):
    asked = Workload(
        model=find_model(name), global_batch=8, sequence_length=128, precision=precision
    )
    low, wide = find_profile(asked), load_profile(name)
    low.require(asked)
    assert low.types == wide.types
    for costs, lower in ((wide.layers, low.layers), (wide.tiles, low.tiles)):
        assert costs.keys() == lower.keys()
        for key, cost in costs.items():
            half = {
                "activation_bytes": cost.activation_bytes // 2,
                "input_bytes": cost.input_bytes // 2,
            }
            assert lower[key] == replace(cost, **half)
    assert bool(wide.tiles) == (find_model(name).experts is not None)
