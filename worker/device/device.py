"""The seam to a device: where tensors live, what it has free, its clock, how numbers are read.

Every implementation passes `tests/contracts/test_device.py`.
Invariant: `host` is the only way in which the worker reads a number of a device tensor; it waits
for the device, then asks whether the world that the number came from is broken.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from worker.control.host_memory import free_bytes
from worker.device.broken import Flag

Parts = tuple[torch.Tensor, ...]


class Device(Protocol):
    """One rank's device.

    Attributes:
        torch_device: where its tensors live.
        identity: of a GPU, the same for all who see it; empty: it is none.
    """

    torch_device: torch.device
    identity: str

    def __hash__(self) -> int:
        """One object stands for each device."""

    def check(self, gpu_type: str) -> None:
        """Whether it is of the type of its seat in the plan.

        Raises:
            DeviceUnusable: it is another one.
        """

    def host(self, tensor: torch.Tensor, broken: Flag | None = None) -> torch.Tensor:
        """The numbers of a tensor in memory of the host; waits until they are computed.

        Args:
            tensor: of this device.
            broken: flag of the world that the numbers came from; None: no peer had a part in them.

        Raises:
            ConnectionError: the world is broken, so the numbers may be garbage.
            DeviceSilent: the world is broken, and the device does not come to an end.
        """

    def settle(self) -> None:
        """Wait until all work that it was given is done; asked once a world has broken.

        Raises:
            DeviceSilent: it does not come to an end, so this process is to.
        """

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host tensor on the device; nobody waits for the copy."""

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Write a host tensor into a device tensor of its shape; nobody waits for the copy."""

    def load(self, targets: Parts, write: Callable[[Parts], None]) -> None:
        """Let `write` fill host tensors of zeros, in the shapes of `targets`, which get them."""

    def snapshot(self, tensor: torch.Tensor, since: Any = None) -> torch.Tensor:
        """A copy of the numbers in memory of the host, which nothing changes.

        Args:
            tensor: of this device.
            since: mark after which nothing writes the tensor, so that the copy waits for no work
                behind it; None: it waits for all that the device was given.
        """

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Host memory, not initialised, that copies from and to the device take directly."""

    def mark(self) -> Any:
        """This moment in the work given to the device so far."""

    def seconds(self, start: Any, end: Any) -> float:
        """Time between two marks; called once the device is known to have passed both."""

    def free_bytes(self, ranks: int) -> int:
        """Memory that this rank may fill.

        Args:
            ranks: of the job on this node; they share memory of the host.
        """

    def held_bytes(self) -> int:
        """The most that this rank has held so far."""

    def begin_epoch(self) -> None:
        """What the epoch before held is freed: nothing of it is to be kept for later."""


class CpuDevice:
    """The processor: its tensors are the host's, and its work is done when a call returns."""

    torch_device = torch.device("cpu")
    identity = ""

    def check(self, gpu_type: str) -> None:
        """A processor stands for any type, as an emulated one."""

    def host(self, tensor: torch.Tensor, broken: Flag | None = None) -> torch.Tensor:
        """The tensor itself."""
        if broken is not None:
            broken.check()
        return tensor

    def settle(self) -> None:
        """Its work is done."""

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return tensor

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """A plain copy."""
        target.copy_(source)

    def load(self, targets: Parts, write: Callable[[Parts], None]) -> None:
        """The targets are of the host themselves, and zero."""
        write(targets)

    def snapshot(self, tensor: torch.Tensor, since: Any = None) -> torch.Tensor:
        """A plain copy."""
        del since
        return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Plain memory."""
        return torch.empty(shape, dtype=dtype)

    def mark(self) -> float:
        """Seconds of the host's clock."""
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        """Their difference."""
        return end - start

    def free_bytes(self, ranks: int) -> int:
        """This rank's share of the node's free memory."""
        return free_bytes() // ranks

    def held_bytes(self) -> int:
        """The most that this process has held, Python and torch with it."""
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def begin_epoch(self) -> None:
        """Nothing is kept."""


CPU = CpuDevice()


def fault_of(device: Device) -> Exception | None:
    """Why a device whose world has broken cannot be used any more; None: it can.

    It is silent, or says what has failed on it before.
    """
    try:
        device.settle()
    except Exception as fault:
        return fault
    return None
