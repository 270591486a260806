"""The services of a rank on a device, by how its tensors travel.

cpu       host tensors over gloo, as a job without GPUs
staged    device tensors through staging memory over gloo
recorded  device tensors over wires with NCCL's manners
cuda      tensors of a GPU, which all ranks share, through staging memory over gloo
nccl      tensors of a GPU of each rank, over NCCL
"""

from __future__ import annotations

import os
from typing import Literal

from tests.simulated_device.device import SimulatedDevice
from tests.simulated_device.recorded_wire import RecordedWire
from worker.control.store_client import StoreClient
from worker.device.choice import own_device
from worker.device.device import CPU
from worker.gpu_wire import VARIABLE
from worker.rank.process import GlooServices
from worker.world.payload import Payload

Way = Literal["cpu", "staged", "recorded", "cuda", "nccl"]


class StoryServices(GlooServices):
    """Those of a rank process, but for the store, which all processes of the test have."""

    def __init__(self, way: Way, rank: int = 0) -> None:
        super().__init__(emulate=False, store_key="", device=on(way, rank))
        self._way, self.phases = way, []
        if way == "recorded":  # what stands below NCCL's wire; all above it is the worker's
            self.payload = Payload("nccl", "recorded", RecordedWire.form)

    def on_phase(self, name):
        self.phases.append(name)

    def connect_store(self, address, epoch, is_cancelled):
        return StoreClient(self.store.clone(), is_cancelled)


def on(way: Way, rank: int):
    """The device of a rank by its way."""
    if way == "nccl":
        os.environ[VARIABLE] = "nccl"
        return own_device("cuda", rank)
    if way == "cuda":
        return own_device("cuda", 0)
    return CPU if way == "cpu" else SimulatedDevice()
