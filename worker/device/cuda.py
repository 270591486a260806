"""An NVIDIA GPU as the device of a rank.  Nothing here has run on a GPU yet.

A rank sees one GPU, so it is always `cuda:0` of its process.  The host reads through pinned memory:
it asks an event in turns, so that a device that never answers ends the wait at its deadline.
Source: CUDA's programming guide on events and pinned memory; `torch.cuda`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from worker.device.broken import Broken
from worker.device.device import BREAK_S, Parts
from worker.device.gpus import check_type
from worker.errors import DeviceSilent

LOOK_S = 20e-6  # between two looks at an event; a copy to the host takes about as long


class CudaDevice:
    """The GPU of this process."""

    def __init__(self, index: int = 0) -> None:
        """Make the GPU this process's own; the first CUDA call of its life."""
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        self.identity = str(torch.cuda.get_device_properties(self.torch_device).uuid)
        free, total = torch.cuda.mem_get_info(self.torch_device)
        self._context_bytes = total - free  # what CUDA holds before the first tensor

    def check(self, gpu_type: str) -> None:
        """See `Device`."""
        check_type(torch.cuda.get_device_name(self.torch_device), gpu_type)

    def host(self, tensor: torch.Tensor, broken: Broken | None = None) -> torch.Tensor:
        """See `Device`.

        Raises:
            DeviceSilent: the world is broken, and the device does not come to an end.
        """
        found = self.staging(tuple(tensor.shape), tensor.dtype)
        found.copy_(tensor.detach(), non_blocking=True)
        _await(self.mark(), lambda: broken is not None and broken.is_set)
        if broken is not None:
            broken.check()
        return found

    def settle(self) -> None:
        """See `Device`; all work of a rank is on one stream."""
        _await(self.mark(), lambda: True)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Through pinned memory, which torch frees once the copy is done."""
        staged = self.staging(tuple(tensor.shape), tensor.dtype).copy_(tensor)
        return staged.to(self.torch_device, non_blocking=True)

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Through pinned memory as well."""
        staged = self.staging(tuple(source.shape), source.dtype).copy_(source)
        target.copy_(staged, non_blocking=True)

    def load(self, targets: Parts, write: Callable[[Parts], None]) -> None:
        """Pinned memory is written, then copied."""
        staged = tuple(self.staging(tuple(one.shape), one.dtype).zero_() for one in targets)
        write(staged)
        for target, source in zip(targets, staged, strict=True):
            target.copy_(source, non_blocking=True)

    def snapshot(self, tensor: torch.Tensor) -> torch.Tensor:
        """By `host`, whose memory is a new one each time."""
        return self.host(tensor)

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Pinned memory of torch's cache."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def mark(self) -> torch.cuda.Event:
        """An event in the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's
        event.record()
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """By the device's own clock."""
        return float(start.elapsed_time(end)) / 1000

    def free_bytes(self, ranks: int) -> int:
        """Free memory of the GPU, and torch's own cache; no other rank has a part in it."""
        del ranks
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return free + cached

    def held_bytes(self) -> int:
        """The most that torch has reserved, and CUDA's context."""
        return self._context_bytes + torch.cuda.max_memory_reserved(self.torch_device)


def _await(reached: torch.cuda.Event, is_late: Callable[[], bool]) -> None:
    """Return once the device has passed an event.

    Raises:
        DeviceSilent: it has not, `BREAK_S` after `is_late` said so.
    """
    since_s: float | None = None
    while not reached.query():  # type: ignore[no-untyped-call] # torch's
        if is_late():
            since_s = since_s or time.monotonic()
            if time.monotonic() - since_s > BREAK_S:
                raise DeviceSilent(BREAK_S)
        time.sleep(LOOK_S)


def is_initialised() -> bool:
    """Whether this process has made a CUDA call; a fork of it could make none."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call] # torch's


def begin_process() -> None:
    """Settings of a process that trains on a GPU, before its first operation.

    fp32 is fp32, and sums of products in low precision are not rounded in between.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
