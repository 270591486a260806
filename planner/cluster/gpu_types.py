"""The GPU types that have a modelled profile: data sheets, and constants fitted to measurements.

Three kinds of numbers.  *Peaks* are vendors' figures (dense, fp32 accumulation).  *Fitted* ones
(efficiencies, launch and host times): for the six types of Sailor's fp16 operator profiles to
those, for `a100-80` to half of vTrain's measured iterations; `planner.validation.fit` says how and
fits them again. *Carried over* ones are those of the nearest fitted type with the launches of whole
iterations, and `source` says which.  Rings are linear fits to collective tables where there is one.
Invariant: the fit prices no held-out row of an iteration; operator profiles are fitted whole.
"""

from __future__ import annotations

from dataclasses import replace

from planner.cluster.hardware import GpuHardware, Ring
from planner.errors import UnprofiledConfiguration

G = 1e9
GIB = 2**30
LAUNCH_S = 10e-6  # gap between two operators of a whole iteration
STEP_S = 0.1e-3  # fitted to half of vTrain's rows
NIC_EFFICIENCY = 0.939  # fitted to half of vTrain's rows

# 100 Gb/s Ethernet at 90 %, the port of a node where nothing else is known: the paper's testbed.
ETHERNET_100 = Ring(50e-6, 11.25 * G)
# Eight ports of 200 Gb/s InfiniBand, as in a DGX; the rate is what vTrain's cluster of half as many
# reached of its peak.
_INFINIBAND = Ring(20e-6, 180 * G)

_A100 = GpuHardware(
    name="a100-40",
    memory_bytes=40 * GIB,
    matrix_flops_s=312e12,
    full_flops_s=19.5e12,
    memory_bytes_s=1555 * G,
    processors=108,
    gemm_efficiency=0.778,
    memory_efficiency=0.820,
    launch_s=60e-6,
    host_forward_s=145e-6,
    host_backward_s=33.2e-6,
    step_s=STEP_S,
    nic_efficiency=NIC_EFFICIENCY,
    node_gpus=4,
    rings={2: Ring(85e-6, 190 * G), 4: Ring(104e-6, 214 * G)},
    point_to_point=Ring(30e-6, 235 * G),
    node_nic=Ring(50e-6, 6 * G),
    source="fitted: Sailor's operator profile and collective tables of A100-40",
)
_A100_80 = replace(
    _A100,
    name="a100-80",
    memory_bytes=80 * GIB,
    memory_bytes_s=2039 * G,
    node_gpus=8,
    rings={2: Ring(20e-6, 225 * G), 4: Ring(35e-6, 225 * G), 8: Ring(75e-6, 230 * G)},
    node_nic=Ring(20e-6, 90 * G),
    host_forward_s=87.6e-6,
    gemm_efficiency=0.810,
    memory_efficiency=0.586,
    launch_s=LAUNCH_S,
    source="fitted: half of vTrain's iterations on A100; rings: vTrain's all-reduce tables",
)
_GH200 = GpuHardware(
    name="gh200-96",
    memory_bytes=96 * GIB,
    matrix_flops_s=989e12,
    full_flops_s=67e12,
    memory_bytes_s=4000 * G,
    processors=132,
    gemm_efficiency=0.570,
    memory_efficiency=0.883,
    launch_s=57.5e-6,
    host_forward_s=97.5e-6,
    host_backward_s=40e-6,
    step_s=STEP_S,
    nic_efficiency=NIC_EFFICIENCY,
    node_gpus=4,
    rings={2: Ring(65e-6, 111 * G), 4: Ring(60e-6, 337 * G)},
    point_to_point=Ring(30e-6, 115 * G),
    node_nic=Ring(30e-6, 92 * G),
    source="fitted: Sailor's operator profile and network curves of GH-96 (GH200, 96 GB)",
)
_V100 = GpuHardware(
    name="v100-16",
    memory_bytes=16 * GIB,
    matrix_flops_s=125e12,
    full_flops_s=15.7e12,
    memory_bytes_s=900 * G,
    processors=80,
    gemm_efficiency=0.691,
    memory_efficiency=0.772,
    launch_s=43.1e-6,
    host_forward_s=124e-6,
    host_backward_s=30e-6,
    step_s=STEP_S,
    nic_efficiency=NIC_EFFICIENCY,
    node_gpus=4,
    rings={2: Ring(83e-6, 61 * G), 4: Ring(150e-6, 78 * G)},
    point_to_point=Ring(30e-6, 63 * G),
    node_nic=Ring(50e-6, 5.8 * G),
    source="fitted: Sailor's operator profile and collective tables of V100-16",
)
_RTX_3090 = GpuHardware(
    name="rtx-3090",
    memory_bytes=24 * GIB,
    matrix_flops_s=71e12,
    full_flops_s=35.6e12,
    memory_bytes_s=936 * G,
    processors=82,
    gemm_efficiency=1.00,
    memory_efficiency=0.828,
    launch_s=40.3e-6,
    host_forward_s=121e-6,
    host_backward_s=40e-6,
    step_s=STEP_S,
    nic_efficiency=NIC_EFFICIENCY,
    node_gpus=8,
    # pairs have a bridge; four share PCIe (its table doubles its rate above 128 MB, beyond a
    # layer's messages), eight cross the sockets
    rings={2: Ring(65e-6, 43.5 * G), 4: Ring(100e-6, 4.8 * G), 8: Ring(100e-6, 1.3 * G)},
    point_to_point=Ring(30e-6, 46 * G),
    node_nic=Ring(100e-6, 0.115 * G),
    source="fitted: Sailor's operator profile and collective tables of RTX 3090",
)
_RTX_2080 = GpuHardware(
    name="rtx-2080",
    memory_bytes=11 * GIB,
    matrix_flops_s=53.8e12,
    full_flops_s=13.4e12,
    memory_bytes_s=616 * G,
    processors=68,
    gemm_efficiency=1.02,
    memory_efficiency=0.858,
    launch_s=42.6e-6,
    host_forward_s=157e-6,
    host_backward_s=50e-6,
    step_s=STEP_S,
    nic_efficiency=NIC_EFFICIENCY,
    node_gpus=8,
    rings={2: Ring(122e-6, 4.1 * G), 4: Ring(145e-6, 5.0 * G), 8: Ring(172e-6, 5.3 * G)},
    point_to_point=Ring(50e-6, 9.9 * G),
    node_nic=Ring(100e-6, 2.86 * G),
    source="fitted: Sailor's operator profile and collective tables of RTX 2080 (Ti, 11 GB)",
)
_TITAN = replace(
    _RTX_2080,
    name="titan-rtx",
    memory_bytes=24 * GIB,
    matrix_flops_s=130.5e12,
    full_flops_s=16.3e12,
    memory_bytes_s=672 * G,
    processors=72,
    gemm_efficiency=0.612,
    memory_efficiency=0.826,
    host_forward_s=108e-6,
    rings={2: Ring(116e-6, 4.1 * G), 4: Ring(140e-6, 5.0 * G), 8: Ring(163e-6, 5.3 * G)},
    launch_s=20.4e-6,
    source="fitted: Sailor's operator profile and collective tables of Titan RTX",
)


def _nvlink(rate: float, latency_s: float = 40e-6) -> dict[int, Ring]:
    """Rings over NVLink at the share that A100's tables reach: 75 % of one direction."""
    return {size: Ring(latency_s, 0.75 * rate) for size in (2, 4, 8)}


def _pcie(rate: float) -> dict[int, Ring]:
    """Rings over PCIe: about half of one direction in pairs, less when more share the host bridge.

    The shares are those of Titan RTX and RTX 2080 against PCIe 3 x16 (15.8 GB/s).
    """
    return {2: Ring(60e-6, 0.35 * rate), 4: Ring(80e-6, 0.32 * rate), 8: Ring(100e-6, 0.30 * rate)}


_HOPPER = replace(
    _GH200,
    name="h100",
    memory_bytes=80 * GIB,
    memory_bytes_s=3350 * G,
    node_gpus=8,
    rings=_nvlink(450 * G),
    point_to_point=Ring(30e-6, 340 * G),
    node_nic=_INFINIBAND,
    launch_s=LAUNCH_S,
    source="carried over from gh200-96; memory, NVLink and node: data sheet of H100 SXM",
)
_A6000 = replace(
    _A100,
    name="a6000",
    memory_bytes=48 * GIB,
    matrix_flops_s=154.8e12,
    full_flops_s=38.7e12,
    memory_bytes_s=768 * G,
    processors=84,
    gemm_efficiency=0.70,
    memory_efficiency=0.70,
    node_gpus=4,
    rings={**_pcie(32 * G), 2: Ring(65e-6, 43.5 * G)},
    point_to_point=Ring(30e-6, 22 * G),
    node_nic=ETHERNET_100,
    launch_s=LAUNCH_S,
    source=(
        "carried over: efficiencies of Ampere (A100, RTX 3090); pair bridge as RTX 3090; "
        "memory and "
        "links: data sheet"
    ),
)
_BLACKWELL_PCIE = replace(
    _GH200,
    name="rtx-pro-6000",
    memory_bytes=96 * GIB,
    matrix_flops_s=503.8e12,
    full_flops_s=125e12,
    memory_bytes_s=1792 * G,
    processors=188,
    gemm_efficiency=0.60,
    memory_efficiency=0.70,
    rings=_pcie(64 * G),
    point_to_point=Ring(30e-6, 45 * G),
    node_nic=ETHERNET_100,
    launch_s=LAUNCH_S,
    source=("carried over: products of Hopper (gh200-96), memory of RTX 3090; rest: data sheet"),
)

HARDWARE: dict[str, GpuHardware] = {
    gpu.name: gpu
    for gpu in (
        _A100,
        _A100_80,
        _HOPPER,
        replace(
            _HOPPER,
            name="h200",
            memory_bytes=141 * 10**9,
            memory_bytes_s=4800 * G,
            source="carried over from gh200-96; memory and node: data sheet of H200 SXM",
        ),
        _GH200,
        _A6000,
        replace(
            _A6000,
            name="a5000",
            memory_bytes=24 * GIB,
            matrix_flops_s=111.1e12,
            full_flops_s=27.8e12,
            processors=64,
        ),
        _BLACKWELL_PCIE,
        _RTX_3090,
        _RTX_2080,
        _TITAN,
        _V100,
        replace(
            _V100,
            name="v100-32",
            launch_s=LAUNCH_S,
            memory_bytes=32 * GIB,
            node_gpus=8,
            rings={2: Ring(35e-6, 61 * G), 4: Ring(45e-6, 84 * G), 8: Ring(80e-6, 84 * G)},
            node_nic=ETHERNET_100,
            source="carried over from v100-16; ring of four: vTrain's all-reduce table of V100",
        ),
        replace(
            _BLACKWELL_PCIE,
            name="l40s",
            memory_bytes=48 * GIB,
            matrix_flops_s=362e12,
            full_flops_s=91.6e12,
            memory_bytes_s=864 * G,
            processors=142,
            rings=_pcie(32 * G),
            point_to_point=Ring(30e-6, 22 * G),
            source=_BLACKWELL_PCIE.source,
        ),
        replace(
            _HOPPER,
            name="b200",
            memory_bytes=180 * GIB,
            matrix_flops_s=2250e12,
            full_flops_s=80e12,
            memory_bytes_s=8000 * G,
            processors=148,
            rings=_nvlink(900 * G),
            point_to_point=Ring(30e-6, 680 * G),
            source="carried over from gh200-96; rest: data sheet of B200 SXM",
        ),
    )
}


def find_gpu(name: str) -> GpuHardware:
    """The hardware of that name.

    Raises:
        UnprofiledConfiguration: there is none; the message lists those there are.
    """
    if name not in HARDWARE:
        raise UnprofiledConfiguration(
            f"GPU type {name!r} has no profile; known are {', '.join(sorted(HARDWARE))}: use "
            f"one of "
            f"them, or measure it with `heddle profile`"
        )
    return HARDWARE[name]
