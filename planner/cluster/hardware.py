"""A GPU type, as far as the roofline of one operator needs it.

An operator takes as long as its arithmetic, its memory traffic or its launch, whichever is longest.
A product of matrices is cut into tiles that the processors take in waves, so that an odd number of
tiles leaves some idle; one efficiency per GPU would hide that.
Invariant: pure numbers with a stated source; who fits them is `benchmarks.fit`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

TILE = 128  # rows and columns of C that one processor computes at a time
# Of the processors that idle in the last wave of tiles, the share that nothing else fills.
WAVE_LOSS = 0.5
# Share of the fp32 peak that a large product reaches: a plain multiply-add pipeline is fed easily.
FULL_PRECISION_EFFICIENCY = 0.8
# The share of it that products of bf16 reach where a GPU computes them as fp32: a V100 reached 9.6
# of 15.7 TFLOP/s (github.com/lablup/mlxcel, issue 1654).
EMULATED_BF16_EFFICIENCY = 0.6


@dataclass(frozen=True, slots=True)
class Ring:
    """A group of GPUs as its collectives see it."""

    latency_s: float  # of one collective, whatever its size
    bandwidth_bytes_per_s: float  # bus bandwidth of one GPU of the group at large sizes

    def all_reduce_s(self, num_bytes: float, size: int) -> float:
        """An all-reduce of that many bytes among `size` GPUs; 2 (R-1)/R is a ring's volume."""
        if size == 1:
            return 0.0
        volume = 2 * (size - 1) / size * num_bytes
        return self.latency_s + volume / self.bandwidth_bytes_per_s


class Operator(NamedTuple):
    """One kernel, or a few that always run together."""

    flops: float  # multiplications and additions of a matrix product; 0 if it is none
    num_bytes: float  # read from and written to memory
    tiles: int = 0  # of the product, 0 if it is none
    full_precision: bool = False  # the product runs on fp32 values


def product(
    rows: float,
    columns: float,
    inner: float,
    *,
    value_bytes: int,
    batch: float = 1,
    full_precision: bool = False,
) -> Operator:
    """`batch` products of (rows x inner) with (inner x columns); values of 4 bytes are fp32."""
    tiles = math.ceil(rows / TILE) * math.ceil(columns / TILE) * math.ceil(batch)
    values = batch * (rows * inner + inner * columns + rows * columns)
    return Operator(
        2.0 * batch * rows * columns * inner,
        values * value_bytes,
        tiles,
        full_precision or value_bytes == 4,
    )


def traffic(num_bytes: float) -> Operator:
    """An operator that only moves bytes."""
    return Operator(0.0, num_bytes)


@dataclass(frozen=True, kw_only=True)
class GpuHardware:
    """One GPU type."""

    name: str  # as nodes and stages write it
    memory_bytes: int  # physical memory
    matrix_flops_s: float  # peak of fp16 or bf16 products with fp32 accumulation, dense
    full_flops_s: float  # peak of products of fp32 values, without TF32 as is PyTorch's default
    memory_bytes_s: float  # peak of the memory
    processors: int  # streaming multiprocessors
    gemm_efficiency: float  # share of the peak that a large product reaches
    memory_efficiency: float  # share of the memory's peak that a large transfer reaches
    launch_s: float  # gap between two operators on the device
    host_forward_s: float  # what the host needs for one operator of the forward pass
    host_backward_s: float  # the same of the backward pass
    step_s: float  # what the host needs around the optimizer step: norm, overflow check, clip
    nic_efficiency: float  # share of a network port's nominal rate that its collectives reach
    node_gpus: int  # GPUs of its largest usual node
    rings: Mapping[int, Ring]  # groups inside a node by their size
    point_to_point: Ring  # link between two GPUs of a node
    node_nic: Ring  # the network port of its usual node, all ports together
    host_link_bytes_per_s: float  # peak of its link to the host, each way
    source: str  # where the numbers come from
    has_bf16: bool = True  # its matrix units take bf16; those of Volta and Turing do not

    def seconds(self, operator: Operator) -> float:
        """How long the device takes for one operator."""
        moved_s = operator.num_bytes / (self.memory_bytes_s * self.memory_efficiency)
        if not operator.flops:
            return self.launch_s + moved_s
        waves = math.ceil(operator.tiles / self.processors)
        idle = waves * self.processors / operator.tiles - 1
        rate = (
            self.full_flops_s * FULL_PRECISION_EFFICIENCY
            if operator.full_precision
            else self.matrix_flops_s * self.gemm_efficiency
        )
        computed_s = operator.flops * (1 + WAVE_LOSS * idle) / rate
        return self.launch_s + max(computed_s, moved_s)

    def at(self, precision: str) -> GpuHardware:
        """The same GPU, its products as fast as it computes them in this precision."""
        if precision != "bf16" or self.has_bf16:
            return self
        rate = self.full_flops_s * EMULATED_BF16_EFFICIENCY
        return replace(self, matrix_flops_s=rate, gemm_efficiency=1.0)

    def ring(self, size: int) -> Ring:
        """A group of `size` GPUs: inside a node, or over as many nodes as it needs.

        Over nodes a ring enters and leaves each node once, so it has the whole port to itself.
        """
        if size > self.node_gpus:
            return self.node_nic
        if size in self.rings:
            return self.rings[size]
        return self.rings[min(self.rings, key=lambda known: (abs(known - size), known))]
