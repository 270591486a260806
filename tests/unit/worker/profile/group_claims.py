"""The bytes of a group on the simulated device; each claim runs in a process for each rank."""

from __future__ import annotations


def bytes_of_a_group(rank, store):
    """(bytes that the profile says of a group of three, groups that were given up)."""
    from tests.simulated_device.device import SimulatedDevice
    from tests.simulated_device.recorded_wire import RecordedWire
    from worker.profile.links import group_bytes

    released = []

    class Holding(RecordedWire):
        """It says to hold bytes for each kind of operation that has connected it."""

        held = 10

        def all_reduce(self, tensor, op):
            self.held += 100
            return super().all_reduce(tensor, op)

        def exchange(self, sends, receives):
            assert {peer for peer, _ in (*sends, *receives)} == {0, 1, 2} - {rank}
            self.held += 1000
            return super().exchange(sends, receives)

        def held_bytes(self):
            return self.held

        def release(self):
            released.append(self)
            return super().release()

    return [group_bytes(Holding.form, store, rank, 3, SimulatedDevice()), len(released)]
