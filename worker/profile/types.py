"""Measure the facts of a GPU type: its update and the bits of that, its launches, its copies.

Invariant: what is timed is what training runs on the device.
"""

from __future__ import annotations

import torch

from planner.model.shape import ModelShape
from planner.profiles.entries import GpuType
from worker.engine.optimizer import Recipe, update_
from worker.engine.update_digest import update_digest
from worker.profile.bench import Bench
from worker.profile.layers import DTYPES, measure_layer
from worker.profile.rows import Part

# Parameters of the samples between which an update is measured.  A device computes while the host
# launches the next kernel, so both are large enough that the kernels take longer than the launches.
HOST_SAMPLES, DEVICE_SAMPLES = (1, 1 << 22), (1 << 23, 1 << 25)
RECIPE = Recipe(betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1, gradient_clip=0.5)
COPIED_BYTES = 1 << 26  # to the device and back


def measure_type(
    bench: Bench,
    model: ModelShape,
    gpu_type: str,
    precision: str,
    *,
    memory_bytes: int,
    reserve_bytes: int,
) -> GpuType:
    """The row of a GPU type in its file.

    Args:
        bench: where and how often.
        model: whose blocks say how long launches take.
        gpu_type: its name.
        precision: of the weights that an update copies.
        memory_bytes: of one device.
        reserve_bytes: of it, what no plan may use.
    """
    latency_s, each_s = measure_optimizer(bench, precision)
    return GpuType(
        name=gpu_type,
        memory_bytes=memory_bytes,
        reserve_bytes=reserve_bytes,
        optimizer_latency_s=latency_s,
        optimizer_s_per_parameter=each_s,
        launch_s=measure_launches(bench, model, precision),
        host_copy_bytes_per_s=measure_copies(bench),
        update_digest=update_digest(bench.device),
    )


def measure_optimizer(bench: Bench, precision: str) -> tuple[float, float]:
    """(seconds of an update whatever its size, seconds more for each parameter).

    It is the update that training applies, a copy of the weight in low precision with it.
    """
    dtype, where = DTYPES[precision], bench.device.torch_device

    def step(count: int) -> float:
        weight, mean, square, gradient = (
            torch.full((count,), value, device=where) for value in (0.5, 0.01, 1e-4, 0.01)
        )
        copy = None if dtype == torch.float32 else weight.to(dtype)

        def update() -> None:
            update_((weight, mean, square), gradient, 1.0, 1e-3, 10, RECIPE, copy)

        return bench.seconds(update)

    few, many = HOST_SAMPLES if where.type == "cpu" else DEVICE_SAMPLES
    return step(1), max(0.0, step(many) - step(few)) / (many - few)


def measure_launches(bench: Bench, model: ModelShape, precision: str) -> float:
    """Seconds of a block's forward pass over one token: launches of its kernels, and little else.

    On a processor a launch is a call, which every entry has within: 0.
    """
    if bench.device.torch_device.type == "cpu":
        return 0.0
    return measure_layer(bench, model, Part("block"), 1, 1, 1, precision, lambda _: 0.0).forward_s


def measure_copies(bench: Bench) -> float | None:
    """Bytes per second of a copy to the device, or back where that is slower; None on CPU."""
    device = bench.device
    if device.torch_device.type == "cpu":
        return None
    host = device.staging((COPIED_BYTES,), torch.uint8).zero_()
    there = device.put(host)
    to_s = bench.seconds(lambda: device.fill(there, host))
    back_s = bench.seconds(lambda: device.host(there))
    return COPIED_BYTES / max(to_s, back_s)
