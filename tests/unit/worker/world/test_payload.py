"""worker/world/payload.py: one rule says which wire carries the payload, and why one cannot."""

from __future__ import annotations

import pytest

from planner.profiles.entries import GROUP_BYTES
from worker.device.device import CPU, CpuDevice
from worker.errors import DeviceUnusable
from worker.world.gloo_wire import GlooWire
from worker.world.payload import VARIABLE, Nccl, about, own_nccl, payload_of, wire_of

NEW = Nccl((2, 30, 7), is_new=True)
OLD = Nccl((2, 21, 5), is_new=False)
ASKS = {VARIABLE: "nccl"}


def test_a_processor_has_gloo_whatever_is_asked_for():
    assert wire_of("cpu", {}, NEW) == wire_of("cpu", ASKS, NEW) == "gloo"
    assert payload_of(CPU) == ("gloo", "gloo", payload_of(CPU).form_wire, 0)
    assert payload_of(CPU).form_wire == GlooWire.form


def test_a_gpu_has_staging_memory_until_nccl_is_asked_for():
    assert wire_of("cuda", {}, NEW) == wire_of("cuda", {VARIABLE: "Auto"}, NEW) == "staged"
    assert wire_of("cuda", {VARIABLE: "staged"}, NEW) == "staged"
    assert wire_of("cuda", ASKS, NEW) == wire_of("cuda", {VARIABLE: "NCCL"}, OLD) == "nccl"
    assert payload_of(CpuDevice()).name == "staged"  # any device that is not the processor's own


def test_the_class_follows_from_torch_and_from_the_library():
    assert NEW.uses_new
    assert not OLD.uses_new
    assert not Nccl((2, 27, 3), is_new=True).uses_new, "it has no revoke"


@pytest.mark.parametrize(
    ("environment", "nccl", "code", "field"),
    [
        ({VARIABLE: "mpi"}, NEW, "Unknown", VARIABLE),
        (ASKS, Nccl(None, is_new=False), "Missing", VARIABLE),
        (ASKS, Nccl((2, 10, 3), is_new=False), "Unsupported", VARIABLE),
    ],
)
def test_what_cannot_be_had_is_refused_by_a_code(environment, nccl, code, field):
    with pytest.raises(DeviceUnusable) as caught:
        wire_of("cuda", environment, nccl)
    assert (caught.value.code, caught.value.field) == (code, field)


def test_a_wire_says_its_class_its_version_and_its_settings():
    environment = {"NCCL_IB_HCA": "mlx5", "TORCH_NCCL_BLOCKING_WAIT": "1", "HOME": "/"}
    assert about("nccl", environment, NEW) == (
        "nccl2 2.30.7 NCCL_IB_HCA=mlx5 TORCH_NCCL_BLOCKING_WAIT=1"
    )
    assert about("nccl", {}, OLD) == "nccl-legacy 2.21.5"
    assert about("staged", environment, NEW) == "staged"


def test_this_torch_tells_its_nccl_and_the_bytes_of_a_group_are_counted():
    assert own_nccl().version is None or own_nccl().version >= (2, 14, 0)
    assert GROUP_BYTES > 100e6  # 16 connections of 9.2 MiB
