"""The emulated GPU types: files are the formula's output, and the formula is sane."""

from __future__ import annotations

from itertools import pairwise

import pytest

from planner.model.workload import DEMO_MODELS
from planner.profiles.profile import PROFILES
from tests.builders import demo_profile
from tests.demo_profile import TYPES, profile_files, profile_text, write_profile


@pytest.mark.parametrize("model", DEMO_MODELS)
def test_the_committed_files_are_the_formulas_output_bit_for_bit(tmp_path, model):
    paths = write_profile(tmp_path, model)
    assert {path.name for path in paths} == {
        path.name for path in (PROFILES / model).glob("*.json")
    }
    for path in paths:
        assert path.read_text() == (PROFILES / model / path.name).read_text()


@pytest.mark.parametrize("model", DEMO_MODELS)
def test_every_file_says_modelled_and_how(model):
    for content in profile_files(model).values():
        assert content["origin"] == "modelled"
        assert content["provenance"]["hardware"]
        assert profile_text(content).endswith("}\n")


@pytest.mark.parametrize("gpu_type", [emulated.gpu_type.name for emulated in TYPES])
def test_time_grows_slower_than_the_micro_batch(gpu_type):
    costs = [demo_profile().layer_cost("block", gpu_type, 1, b) for b in (1, 2, 4, 8, 16)]
    times = [cost.forward_s + cost.backward_s for cost in costs]
    for one, twice in pairwise(times):
        assert one < twice < 2 * one
    assert all(cost.backward_s >= cost.forward_s for cost in costs)


def test_tp_divides_the_work_and_costs_communication():
    one, two = (demo_profile().layer_cost("block", "demo-fast", tp, 8) for tp in (1, 2))
    assert two.forward_s < one.forward_s
    assert two.activation_bytes < one.activation_bytes
    assert (one.tp_communication_s, two.tp_communication_s > 0) == (0.0, True)
