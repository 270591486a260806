"""What the simulated device refuses, tried one by one in a process of its own."""

from __future__ import annotations

import threading

import torch


def claims(rank, store):
    """{what was done: what was said of it, None if nothing}."""
    from tests.simulated_device import recorded_wire
    from tests.simulated_device.device import SimulatedDevice
    from tests.simulated_device.tensors import SIM
    from worker.control.activity import Activity
    from worker.world.world import World

    device = SimulatedDevice()
    here, there = torch.ones(3), device.put(torch.ones(3))
    wire = recorded_wire.RecordedWire.form(store, "alone", 0, 1)

    def in_a_thread():
        errors = []

        def act():
            try:
                wire.all_reduce(there, "sum").wait()
            except AssertionError as error:
                errors.append(error)

        thread = threading.Thread(target=act, name="prepare-epoch")
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    def timed(wait):
        first, last = device.mark(), device.mark()
        wait()
        device.seconds(first, last)

    def alone():
        activity = Activity()

        class Asks(SimulatedDevice):
            def host(self, tensor, broken=None):
                assert not activity.waiting, "World.host waits for peers: in a world of one"
                return super().host(tensor, broken)

        World(store, 1, 0, 1, ((0,),), activity, device=Asks()).host(there)

    tried = {
        "a sum of both sides": lambda: here + there,
        "a number past the device": lambda: there.sum().item(),
        "numbers past the device": there.tolist,
        "a copy past the device": lambda: there.to("cpu"),
        "a copy from plain memory": lambda: here.to(SIM),
        "a host tensor on a wire": lambda: wire.all_reduce(here, "sum"),
        "a thread beside the one that trains": in_a_thread,
        "a number that no peer had a part in": alone,
        "the time of work that nobody has awaited": lambda: timed(lambda: None),
        "the time of work once a number behind it is read": lambda: timed(
            lambda: device.host(there)
        ),
        "the time of work once the device has settled": lambda: timed(device.settle),
        "what is meant": lambda: wire.all_reduce(device.put(device.host(there)), "sum").wait(),
    }
    said = {}
    for name, act in tried.items():
        try:
            act()
            said[name] = None
        except AssertionError as error:
            said[name] = str(error).partition(" ")[2]
    return said
