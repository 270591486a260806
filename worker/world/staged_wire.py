"""A wire for device tensors, which travel through staging memory of the host over another wire.

Any number of ranks may share one GPU, and bits are those of the host's sums.  It is slow: each
operation copies to the host and back, and the host waits for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from migration.transport import ReduceOp
from worker.device.device import Device
from worker.world.wire import FormWire, OverHost, Wire, Work


class StagedWire(OverHost):
    """One rank's membership; see `Wire`.

    Attributes:
        control: the wire below, for host tensors.
    """

    def __init__(self, below: Wire, device: Device) -> None:
        """`below` takes host tensors."""
        self.control, self._device = below, device

    @staticmethod
    def over(form: FormWire, device: Device) -> FormWire:
        """Forms staged wires of a device over what `form` forms."""
        return lambda store, name, place, size: StagedWire(form(store, name, place, size), device)

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> Work:
        """See `Wire`."""
        return self._both_ways(tensor, lambda staged: self.control.all_reduce(staged, op))

    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        """See `Wire`."""
        return self._both_ways(tensor, lambda staged: self.control.broadcast(staged, source))

    def all_gather(self, tensor: torch.Tensor) -> Work:
        """See `Wire`."""
        return self._both_ways(tensor, self.control.all_gather)

    def send(self, tensor: torch.Tensor, target: int) -> Work:
        """See `Wire`."""
        return self.control.send(self._device.host(tensor), target)

    def recv(self, tensor: torch.Tensor, source: int) -> Work:
        """See `Wire`."""
        staged = self._device.staging(tuple(tensor.shape), tensor.dtype)
        return Staged(self.control.recv(staged, source), staged, tensor, self._device)

    def all_to_all(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        rows_from: Sequence[int],
        rows_to: Sequence[int],
    ) -> Work:
        """See `Wire`."""
        staged = self._device.staging(tuple(received.shape), received.dtype)
        work = self.control.all_to_all(staged, self._device.host(sent), rows_from, rows_to)
        return Staged(work, staged, received, self._device)

    def abort(self) -> None:
        """See `Wire`."""
        self.control.abort()

    def release(self) -> object:
        """See `Wire`."""
        return self.control.release()

    def _both_ways(self, tensor: torch.Tensor, begin: Callable[[torch.Tensor], Work]) -> Work:
        staged = self._device.host(tensor)
        return Staged(begin(staged), staged, tensor, self._device)


class Staged:
    """An operation, or a message, whose result is still to be copied to the device."""

    def __init__(
        self, work: Work, staged: torch.Tensor, target: torch.Tensor, device: Device
    ) -> None:
        self._work, self._staged, self._target, self._device = work, staged, target, device

    def wait(self) -> None:
        """See `Work`."""
        self._work.wait()
        self._device.fill(self._target, self._staged)
