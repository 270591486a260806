"""worker/profile/types.py: the row of a processor as a GPU type, and the update of a device."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from planner.model.catalogue import find_model
from worker.device.device import CPU, CpuDevice
from worker.engine.update_digest import UPDATE_DIGEST
from worker.profile.bench import Bench
from worker.profile.types import measure_optimizer, measure_type


@pytest.mark.slow
def test_a_processor_has_its_update_and_the_bits_of_that_and_no_launches():
    found = measure_type(
        Bench(CPU, 1),
        find_model("tiny-llama"),
        "cpu",
        "bf16",
        memory_bytes=1 << 30,
        reserve_bytes=1,
    )
    assert found.optimizer_latency_s > 0
    assert found.optimizer_s_per_parameter > 0
    assert found.update_digest == UPDATE_DIGEST
    assert (found.launch_s, found.host_copy_bytes_per_s) == (0.0, None)


LAUNCH_S = 6e-6  # of a kernel, by the host
NUMBER_S = 1e-12  # that a kernel needs for each number which it writes


class Writes(TorchDispatchMode):
    """Counts what writes, and the numbers that it writes."""

    def __init__(self):
        super().__init__()
        self.launches = self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if any(one.alias_info and one.alias_info.is_write for one in func._schema.arguments):
            self.launches, self.numbers = self.launches + 1, self.numbers + found.numel()
        return found


class Nowhere(CpuDevice):
    """A device whose tensors have no numbers."""

    torch_device = torch.device("meta")

    def put(self, tensor):
        return tensor.to("meta")


class Overlapping(Bench):
    """Of a device that computes while the host launches: the slower of both counts."""

    def seconds(self, work):
        with Writes() as writes:
            work()
        return max(writes.launches * LAUNCH_S, writes.numbers * NUMBER_S)


def test_what_a_parameter_adds_on_a_device_is_not_hidden_by_launches():
    latency_s, each_s = measure_optimizer(Overlapping(Nowhere(), 1), "bf16")
    of_one = latency_s / LAUNCH_S  # kernels of an update, each of which writes every parameter
    assert each_s == pytest.approx(of_one * NUMBER_S, rel=0.1)
