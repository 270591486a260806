"""An NVIDIA GPU as the device of a rank.  Nothing here has run on a GPU yet.

A rank sees one GPU, so it is always `cuda:0` of its process.  The host reads through pinned memory:
it asks an event in turns, so that a device that never answers ends the wait at its deadline.
Source: CUDA's programming guide on events and pinned memory; `torch.cuda`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from worker.device.broken import Flag
from worker.device.device import Parts
from worker.device.gpus import check_type
from worker.device.wait_limit import WaitLimit
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
        # Of reads beside training.
        self._beside: Any = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self._most_reserved = 0  # by torch, in the epochs before
        self._limit = WaitLimit()

    def check(self, gpu_type: str) -> None:
        """See `Device`."""
        check_type(torch.cuda.get_device_name(self.torch_device), gpu_type)

    def host(self, tensor: torch.Tensor, broken: Flag | None = None) -> torch.Tensor:
        """See `Device`.

        Raises:
            DeviceSilent: the world is broken, and the device does not come to an end.
        """
        found = self._read(tensor, lambda: broken is not None and broken.is_set)
        if broken is not None:
            broken.check()
        return found

    def settle(self) -> None:
        """See `Device`; all work of a rank is on one stream."""
        self._await(self.mark(), lambda: True)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Through pinned memory, which torch frees once the copy is done."""
        staged = self.staging(tuple(tensor.shape), tensor.dtype).copy_(tensor)
        return staged.to(self.torch_device, non_blocking=True)

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Through pinned memory as well, which staging memory is already."""
        if not source.is_pinned():
            source = self.staging(tuple(source.shape), source.dtype).copy_(source)
        target.copy_(source, non_blocking=True)

    def load(self, targets: Parts, write: Callable[[Parts], None]) -> None:
        """Plain memory is written, then copied: pinned memory of this size would never be freed."""
        staged = tuple(torch.zeros(one.shape, dtype=one.dtype) for one in targets)
        write(staged)
        for target, source in zip(targets, staged, strict=True):
            target.copy_(source)

    def snapshot(self, tensor: torch.Tensor, since: torch.cuda.Event | None = None) -> torch.Tensor:
        """Plain memory, by way of pinned memory, which the next snapshot takes again."""
        found = torch.empty(tensor.shape, dtype=tensor.dtype)
        if since is None:
            return found.copy_(self.host(tensor))
        with torch.cuda.stream(self._beside):  # steps that are queued go on meanwhile
            self._beside.wait_event(since)
            return found.copy_(self._read(tensor, lambda: False))

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
        """Free memory of the GPU, and of torch's cache what no step of this epoch has needed.

        No other rank has a part in it.  The activations of the step under way are not free,
        whatever part of them is allocated right now.
        """
        del ranks
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        return free + torch.cuda.memory_reserved() - torch.cuda.max_memory_allocated()

    def held_bytes(self) -> int:
        """The most that torch has reserved, and CUDA's context."""
        reserved = torch.cuda.max_memory_reserved(self.torch_device)
        return self._context_bytes + max(self._most_reserved, reserved)

    def begin_epoch(self) -> None:
        """Give the cache back, which NCCL cannot use, and count the peak anew."""
        self._most_reserved = max(self._most_reserved, torch.cuda.max_memory_reserved())
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._limit.begin_epoch()

    def _read(self, tensor: torch.Tensor, is_late: Callable[[], bool]) -> torch.Tensor:
        """A copy in pinned memory, made in the current stream."""
        found = self.staging(tuple(tensor.shape), tensor.dtype)
        found.copy_(tensor.detach(), non_blocking=True)
        self._await(self.mark(), is_late)
        return found

    def _await(self, reached: torch.cuda.Event, is_late: Callable[[], bool]) -> None:
        """Return once the device has passed an event.

        What was given to it before may take as long as a step, so that much is waited at least.

        Raises:
            DeviceSilent: it has not, so long after `is_late` said so.
        """
        began_s = time.monotonic()
        late_s: float | None = None
        limit_s = self._limit.seconds
        while not reached.query():  # type: ignore[no-untyped-call] # torch's
            if is_late():
                late_s = late_s or time.monotonic()
                if time.monotonic() - late_s > limit_s:
                    raise DeviceSilent(limit_s)
            time.sleep(LOOK_S)
        if late_s is None:
            self._limit.ended(time.monotonic() - began_s)


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
