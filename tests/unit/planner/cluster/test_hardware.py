"""The roofline of one operator: arithmetic, traffic, launch, and waves of tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.gpu_types import find_gpu
from planner.cluster.hardware import Ring, product, traffic

A100 = find_gpu("a100-80")


def test_a_large_product_runs_at_the_efficiency_of_its_type():
    operator = product(16384, 16384, 16384, value_bytes=2)
    rate = operator.flops / A100.seconds(operator)
    assert rate == pytest.approx(A100.matrix_flops_s * A100.gemm_efficiency, rel=0.02)


def test_a_small_product_is_far_from_it():
    operator = product(128, 128, 1024, value_bytes=2)
    rate = operator.flops / A100.seconds(operator)
    assert rate < 0.05 * A100.matrix_flops_s


def test_a_last_wave_that_is_nearly_empty_costs_time():
    full = product(128 * 9, 128 * 12, 8192, value_bytes=2)  # 108 tiles on 108 processors
    spilled = product(128 * 9, 128 * 13, 8192, value_bytes=2)
    more = (A100.seconds(spilled) - A100.launch_s) / (A100.seconds(full) - A100.launch_s)
    assert more > 1.3


def test_a_product_of_fp32_values_runs_on_the_slow_units():
    half, full = (product(8192, 8192, 8192, value_bytes=size) for size in (2, 4))
    assert A100.seconds(full) > 8 * A100.seconds(half)


def test_traffic_takes_its_bytes_and_a_launch():
    taken = A100.seconds(traffic(1e9))
    assert taken == A100.launch_s + 1e9 / (A100.memory_bytes_s * A100.memory_efficiency)


def test_a_ring_moves_twice_its_bytes_less_one_share():
    ring = Ring(0.5, 10.0)
    assert ring.all_reduce_s(100, 1) == 0.0
    assert ring.all_reduce_s(100, 4) == 0.5 + 2 * 3 / 4 * 100 / 10


def test_a_group_that_leaves_its_node_runs_over_the_network():
    assert A100.ring(8) == A100.rings[8]
    assert A100.ring(16) == A100.node_nic
    assert replace(A100, rings={2: Ring(1, 1)}).ring(4) == Ring(1, 1)
