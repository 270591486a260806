"""What every `Device` must do; in a process of its own where torch has one place for it."""

from __future__ import annotations

import threading

import torch

from tests.simulated_device.silent_device import SilentDevice
from worker.device.broken import Broken
from worker.device.device import fault_of
from worker.error_kinds import describe_error
from worker.errors import DeviceSilent


def kept(device) -> list[str]:
    """The clauses that a device keeps, in order."""
    found = {**_numbers(device), **_the_rest(device)}
    return [clause for clause, is_kept in found.items() if is_kept]


def _numbers(device) -> dict[str, bool]:
    numbers = torch.arange(6.0).view(2, 3)
    there, target = device.put(numbers.clone()), torch.empty(2, 3, device=device.torch_device)
    same = there.device.type == device.torch_device.type
    found = {CLAUSES[0]: same and torch.equal(device.host(there), numbers)}
    device.fill(target, numbers.t().contiguous().t())
    found[CLAUSES[1]] = torch.equal(device.host(target), numbers)
    parts = tuple(torch.zeros(2, device=device.torch_device) for _ in range(3))
    device.load(parts, lambda into: into[1].fill_(7.0))
    found[CLAUSES[2]] = [device.host(part).sum() for part in parts] == [0.0, 14.0, 0.0]
    copy = device.snapshot(there)
    there.mul_(2.0)
    found[CLAUSES[3]] = torch.equal(copy, numbers) and copy.is_cpu
    return found


def _the_rest(device) -> dict[str, bool]:
    there, staging = device.put(torch.ones(6)), device.staging((4,), torch.int32)
    found = {CLAUSES[4]: staging.is_cpu and staging.shape == (4,)}
    first, last = device.mark(), device.mark()
    device.host(there)
    found[CLAUSES[5]] = device.seconds(first, last) >= 0.0
    found[CLAUSES[6]] = device.free_bytes(1) > 0 and device.held_bytes() > 0
    broken = Broken()
    device.host(there, broken)
    broken.set("rank 1 is gone")
    broken.set("something else")
    try:
        device.host(there, broken)
    except ConnectionError as error:
        found[CLAUSES[7]] = str(error) == "rank 1 is gone"
    found[CLAUSES[8]] = fault_of(device) is None
    return found


def silence(device) -> list[object]:
    """What is told of a device that stops to answer while its number is awaited."""
    silent, broken = SilentDevice(device, break_s=0.05), Broken()
    there = silent.put(torch.ones(3))
    found: list[object] = [silent.host(there, broken).tolist(), fault_of(silent)]
    silent.fall_silent()
    threading.Timer(0.05, broken.set, ("rank 1 is gone",)).start()
    try:
        silent.host(there, broken)
    except DeviceSilent as error:
        found.append(describe_error(error)[0])
    return [*found, type(fault_of(silent)).__name__]


CLAUSES = [
    "what is put there is read as it was",
    "what is filled in is read as it was",
    "what is loaded is what was written, and zero elsewhere",
    "nothing changes a snapshot",
    "staging memory is of the host",
    "time passes",
    "memory is counted",
    "a broken world gives no number, and says why",
    "what it was given comes to an end",
]


def simulated(rank, store):
    """The clauses that the simulated device keeps."""
    from tests.simulated_device.device import SimulatedDevice

    device = SimulatedDevice()
    return {"kept": kept(device), "silent": silence(device)}


def cpu(rank, store):
    """Those that the processor keeps."""
    from worker.device.device import CPU

    return {"kept": kept(CPU), "silent": silence(CPU)}
