"""A transport for device tensors, which travel through staging memory over another transport."""

from __future__ import annotations

import torch

from migration.transport import Messages, Pending, ReduceOp, Transport, post_all
from worker.device.device import Device
from worker.world.staged_wire import Staged


class StagedTransport:
    """See `Transport`; `below` takes host tensors."""

    in_rounds = False

    def __init__(self, below: Transport, device: Device) -> None:
        self.rank, self.size, self.device = below.rank, below.size, device.torch_device
        self._below, self._device = below, device

    @property
    def bytes_sent(self) -> int:
        """See `Transport`."""
        return self._below.bytes_sent

    @property
    def bytes_received(self) -> int:
        """See `Transport`."""
        return self._below.bytes_received

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Transport.host`; what was received came through gloo, which says what has failed."""
        return self._device.host(tensor)

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Transport.fill`."""
        self._device.fill(target, source)

    def post_send(self, peer: int, tensor: torch.Tensor) -> Pending:
        """See `Transport.post_send`; the copy is made now, the message is under way after it."""
        return self._below.post_send(peer, self._device.host(tensor))

    def post_receive(self, peer: int, tensor: torch.Tensor) -> Pending:
        """See `Transport.post_receive`."""
        staged = self._device.staging(tuple(tensor.shape), tensor.dtype)
        return Staged(self._below.post_receive(peer, staged), staged, tensor, self._device)

    def exchange(self, sends: Messages, receives: Messages) -> Pending:
        """See `Transport.exchange`."""
        return post_all(self, sends, receives)

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """See `Transport.all_reduce_`."""
        self._below.all_reduce_(tensor, op)

    def close(self, *, wait: bool = False) -> None:
        """See `Transport.close`."""
        self._below.close(wait=wait)
