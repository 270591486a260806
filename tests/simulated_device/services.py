"""The services of a rank on a device, by how its tensors travel.

cpu       host tensors over gloo, as a job without GPUs
staged    device tensors through staging memory over gloo
recorded  device tensors over wires with NCCL's manners
cuda      tensors of a GPU, which all ranks share, through staging memory over gloo
    cuda      tensors of a GPU, which all ranks share, through staging memory over gloo
"""

from __future__ import annotations

from typing import Literal

import torch

from migration.errors import TransferFailed
from tests.simulated_device.device import SimulatedDevice
from tests.simulated_device.recorded_wire import RecordedWire
from worker.control.store_client import StoreClient
from worker.device.choice import own_device
from worker.device.device import CPU
from worker.rank.process import GlooServices

Way = Literal["cpu", "staged", "recorded", "cuda"]


class StoryServices(GlooServices):
    """Those of a rank process, but for the store, which all processes of the test have."""

    def __init__(self, way: Way) -> None:
        super().__init__(emulate=False, store_key="", device=on(way))
        self._way = way
        if way == "recorded":
            self._form_wire = RecordedWire.form

    def connect_store(self, address, epoch, is_cancelled):
        return StoreClient(self.store.clone(), is_cancelled)

    def form_transport(self, store, prefix, rank, size):
        transport = super().form_transport(store, prefix, rank, size)
        if self._way != "recorded":
            return transport
        wire = RecordedWire.form(store, f"{prefix}/payload", rank, size)
        return RecordedTransport(transport, wire)


def on(way: Way):
    """The device of a way."""
    if way == "cuda":
        return own_device("cuda", 0)
    return CPU if way == "cpu" else SimulatedDevice()


class RecordedTransport:
    """Messages over a recorded wire, what decides over gloo; see `Transport`."""

    def __init__(self, control, wire: RecordedWire) -> None:
        self.rank, self.size, self.device = control.rank, control.size, control.device
        self.bytes_sent = self.bytes_received = 0
        self._control, self._wire = control, wire
        self.host, self.fill = control.host, control.fill

    def post_send(self, peer, tensor):
        self.bytes_sent += tensor.nbytes
        return self._checked(self._wire.send(tensor, peer))

    def post_receive(self, peer, tensor):
        self.bytes_received += tensor.nbytes
        return self._checked(self._wire.recv(tensor, peer))

    def all_reduce_(self, tensor: torch.Tensor, op) -> None:
        self._control.all_reduce_(tensor, op)

    def close(self, *, wait: bool = False) -> None:
        self._wire.release()
        self._control.close(wait=wait)

    def _checked(self, work):
        if self._wire._aborted.is_set():
            raise TransferFailed("this transport is closed")
        return work
