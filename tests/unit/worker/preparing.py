"""A preparation of the next epoch over stores and transports in memory."""

from __future__ import annotations

import threading
import time

from torch.distributed import HashStore

from tests.fakes.transport import Board
from tests.unit.worker.changes import MODEL, change, held_by, plan
from worker.control.activity import Activity
from worker.control.store_client import StoreClient
from worker.device.device import CPU
from worker.rank.preparation import Preparation
from worker.state.held_state import HeldState
from worker.state.still import StillState
from worker.world.payload import payload_of

OLD, NEW = plan("1x2"), plan("1x1+1x1")
DIRECTIVE = change(OLD, NEW)


class Formed:
    """A world or an engine that remembers how it was given up."""

    def __init__(self):
        self.done = []

    def break_(self):
        self.done.append("broken")

    def leave(self):
        self.done.append("leave")

    def release(self):
        self.done.append("release")


class Client(StoreClient):
    """Remembers that it was closed."""

    is_closed = False

    def close(self):
        super().close()
        self.is_closed = True


class InMemory:
    """What a preparation asks of `Services`, over stores and transports in memory.

    `meeting` is awaited before the members have met; `faults` are raised in place of an effect.
    """

    def __init__(self, **faults):
        self.activity = Activity()
        self.device, self.payload = CPU, payload_of(CPU)
        self.meeting = threading.Event()
        self.meeting.set()
        self.asked, self.builds, self.told = [], [], []
        self.board, self.world, self.engine = Board(2), Formed(), Formed()
        self._faults, self.free = faults, 1 << 30

    def on_phase(self, name):
        self.asked.append(name)

    def connect_store(self, address, epoch, is_cancelled):
        self._do("connect_store", address)
        self.store, self.is_cancelled = Client(HashStore(), is_cancelled), is_cancelled
        return self.store

    def form_transport(self, store, prefix, rank, size):
        assert store is self.store
        assert self.meeting.wait(10)
        self._do("form_transport", prefix, rank, size)
        return self.board.transports()[rank]

    def form_world(self, store, epoch, rank, model, planned):
        assert store is self.store
        self._do("form_world", epoch, rank, planned)
        return self.world

    def free_bytes(self, move):
        return self.free

    def build_engine(self, build):
        self._do("build_engine")
        self.builds.append(build)
        return self.engine

    def _do(self, name, *arguments):
        self.asked.append((name, *arguments))
        if name in self._faults:
            raise self._faults[name]

    def given_up(self):
        return self.store.is_closed, self.board.closed, self.world.done, self.engine.done


def ended(preparation):
    """Once its thread has come back."""
    deadline_s = time.monotonic() + 10
    while preparation.running and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert not preparation.running
    return preparation


def prepare(services, slot=1, pod="tiny-a-0", directive=DIRECTIVE, still=None):
    held = held_by(OLD, "a", slot) if directive.layouts else HeldState(MODEL)
    still = still or StillState()
    return Preparation(MODEL, directive, pod, slot, held, services, still)
