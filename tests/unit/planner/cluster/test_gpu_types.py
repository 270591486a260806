"""GPU types: all that are asked for, with sane constants and a source."""

from __future__ import annotations

import pytest

from planner.cluster.gpu_types import HARDWARE, find_gpu
from planner.errors import UnprofiledConfiguration
from tests.refusals import refused

WANTED = [
    "a100-40",
    "a100-80",
    "h100",
    "h200",
    "gh200-96",
    "a6000",
    "a5000",
    "rtx-pro-6000",
    "rtx-3090",
    "rtx-2080",
    "titan-rtx",
    "v100-16",
    "v100-32",
    "l40s",
    "b200",
    "t4",
    "l4",
    "a10",
    "a10g",
]


def test_every_type_of_the_field_is_there():
    assert not set(WANTED) - set(HARDWARE)


@pytest.mark.parametrize("name", sorted(HARDWARE))
def test_constants_are_physical_and_say_where_they_come_from(name):
    gpu = find_gpu(name)
    assert gpu.source.startswith(("fitted", "carried over"))
    assert 0.3 < gpu.gemm_efficiency < 1.1
    assert 0.3 < gpu.memory_efficiency < 1
    assert gpu.matrix_flops_s > gpu.full_flops_s
    assert 10 * 2**30 < gpu.memory_bytes < 200 * 2**30
    assert set(gpu.rings) >= {2, 4}
    assert gpu.node_nic.bandwidth_bytes_per_s > 0


def test_an_unknown_type_lists_those_there_are():
    with refused(UnprofiledConfiguration, "Unknown"):
        find_gpu("tpu")


@pytest.mark.parametrize("name", sorted(HARDWARE))
def test_a_group_inside_a_node_never_takes_the_network(name):
    gpu = find_gpu(name)
    largest_node = 4 if name == "gh200-96" else 8
    assert all(gpu.ring(size) != gpu.node_nic for size in range(2, largest_node + 1))
    assert gpu.ring(largest_node + 1) == gpu.node_nic


def test_volta_and_turing_compute_bf16_as_fp32():
    v100 = find_gpu("v100-32")
    emulated = v100.at("bf16")
    assert emulated.matrix_flops_s * emulated.gemm_efficiency < v100.full_flops_s
    assert v100.at("fp16") is v100
    assert find_gpu("a100-40").at("bf16") is find_gpu("a100-40")
