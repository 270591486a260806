"""`Device` on simulated memory; it passes `tests/contracts/test_device.py`."""

from __future__ import annotations

import threading

import torch

from tests.simulated_device.rules import RULES
from tests.simulated_device.tensors import SIM, numbers_of, pinned
from worker.device.device import CPU


class SimulatedDevice:
    """One rank's device."""

    torch_device = SIM
    identity = ""

    def __init__(self):
        self._lock = threading.Lock()
        self._marked = self._passed = 0  # marks so far, and those that a thread has waited for

    def check(self, gpu_type):
        """It stands for any type."""

    def host(self, tensor, broken=None):
        with RULES.reading():
            found = pinned(tuple(tensor.shape), tensor.dtype).copy_(tensor.detach())
        self._pass_marks()
        if broken is not None:
            broken.check()  # afterwards: it may have broken while this thread waited
        return found

    def settle(self):
        """Each operation has ended when it returns."""
        self._pass_marks()

    def _pass_marks(self):
        with self._lock:
            self._passed = self._marked

    def put(self, tensor):
        return pinned(tuple(tensor.shape), tensor.dtype).copy_(tensor).to(SIM)

    def fill(self, target, source):
        target.copy_(pinned(tuple(source.shape), source.dtype).copy_(source))

    def load(self, targets, write):
        staged = tuple(pinned(tuple(one.shape), one.dtype).zero_() for one in targets)
        write(staged)
        for target, source in zip(targets, staged, strict=True):
            target.copy_(source)

    def snapshot(self, tensor, since=None):
        return self.host(tensor)

    def staging(self, shape, dtype):
        return pinned(shape, dtype)

    def mark(self):
        with self._lock:
            self._marked += 1
            return self._marked, CPU.mark()

    def seconds(self, start, end):
        (first, start_s), (last, end_s) = start, end
        if max(first, last) > self._passed:
            RULES.offend("reads a mark too early", "seconds")
        return CPU.seconds(start_s, end_s)

    def free_bytes(self, ranks):
        del ranks
        return CPU.free_bytes(1)

    def held_bytes(self):
        return CPU.held_bytes()

    def begin_epoch(self):
        pass


def device_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor of whatever device holds, for a test to compare."""
    return numbers_of(tensor).detach().cpu()
