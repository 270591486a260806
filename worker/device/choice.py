"""Which device a process gets: the one that its pod was told."""

from __future__ import annotations

import os

from worker.device.cuda import CudaDevice, begin_process
from worker.device.device import CPU, Device
from worker.device.environment import VISIBLE, visible


def device_of(kind: str) -> Device:
    """The device of that kind, `cpu` or `cuda`; of GPUs the first one that this process sees."""
    return CPU if kind == "cpu" else CudaDevice()


def own_device(kind: str, slot: int) -> Device:
    """The device of a rank: of GPUs the one of its slot, and the process sees no other."""
    if kind != "cpu":
        os.environ[VISIBLE] = visible(slot, os.environ)  # before the first call of CUDA
        begin_process()
    return device_of(kind)
