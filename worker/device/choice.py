"""Which device a process gets: the one that its pod was told."""

from __future__ import annotations

from typing import Literal

from worker.device.device import CPU, Device

DeviceKind = Literal["cpu", "cuda"]


def device_of(kind: DeviceKind | str) -> Device:
    """The device of that kind; of GPUs the one that this process sees."""
    if kind == "cpu":
        return CPU
    from worker.device.cuda import CudaDevice  # its first call is CUDA's first of the process

    return CudaDevice()
