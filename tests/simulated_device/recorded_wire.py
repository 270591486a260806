"""A wire with NCCL's manners, over gloo: device tensors alone, and each rank writes down.

NCCL runs what one rank issues on one communicator strictly in that order, on one stream; `wait`
orders streams and blocks nobody.  Gloo is kinder: it takes any order.  So each rank writes down
what it issues and awaits, and `law.py` asks two questions of all ranks' rows.
A dead peer is not noticed: whoever waits for it waits until somebody aborts the wire, and then goes
on with garbage that looks finite.
Source: NCCL's user guide, "Using multiple NCCL communicators concurrently", "Thread Safety".
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from typing import Any, ClassVar

import torch

from migration.transfer import MAX_OPERATIONS
from migration.transport import AllOf
from tests.simulated_device.law import Row
from tests.simulated_device.rules import RULES
from tests.simulated_device.tensors import Simulated, numbers_of
from worker.world.gloo_wire import GlooWire

LOG: list[list[Any]] = []  # rows of this rank, see `Row`
TRAINS = [threading.main_thread().name]  # names of threads that may issue
GARBAGE = 0.25  # looks like a number
LIMIT_S = 60.0  # for somebody to abort a wire whose peer is dead
ABORT_S = 2.0  # for the aborts of other wires to begin
_LOCK = threading.Lock()
_NUMBERS, _FORMED, _ROUNDS = itertools.count(), itertools.count(), itertools.count()


class RecordedWire:
    """One rank's membership; see `Wire`.

    Ending one as NCCL's older class does waits for the whole device: where another one waits for a
    peer, the abort of both must begin before either is awaited.
    """

    _ALL: ClassVar[weakref.WeakSet[RecordedWire]] = weakref.WeakSet()

    control = None

    def __init__(self, gloo: GlooWire, name: str, place: int, size: int) -> None:
        self._gloo, self._name, self._place, self._size = gloo, name, place, size
        self._aborted = threading.Event()
        self.underway = 0
        self._ALL.add(self)

    @classmethod
    def form(cls, store, name, place, size):
        gloo = GlooWire.form(store, name, place, size)
        called = torch.tensor([os.getpid() * 1000 + next(_FORMED) if place == 0 else 0])
        gloo.broadcast(called, 0).wait()  # all members call it as the first one does
        return cls(gloo, str(int(called)), place, size)

    def all_reduce(self, tensor, op):
        return self._issue("all_reduce", -1, tensor, lambda t: self._gloo.all_reduce(t, op))

    def broadcast(self, tensor, source):
        return self._issue("broadcast", -1, tensor, lambda t: self._gloo.broadcast(t, source))

    def all_gather(self, tensor):
        return self._issue("all_gather", -1, tensor, lambda t: self._gloo.all_gather(t))

    def send(self, tensor, target):
        return self.exchange([(target, tensor)], [])

    def recv(self, tensor, source):
        return self.exchange([], [(source, tensor)])

    def exchange(self, sends, receives):
        assert 0 < len(sends) + len(receives) <= MAX_OPERATIONS
        number = next(_ROUNDS)
        sent = [self._message("send", peer, tensor, number) for peer, tensor in sends]
        received = [self._message("recv", peer, tensor, number) for peer, tensor in receives]
        return AllOf([*received, *sent])

    def _message(self, what, peer, tensor, number):
        begin = self._gloo.send if what == "send" else self._gloo.recv
        return self._issue(what, peer, tensor, lambda t: begin(t, peer), number)

    def all_to_all(self, received, sent, rows_from, rows_to):
        numbers = numbers_of(sent)
        return self._issue(
            "all_to_all",
            -1,
            received,
            lambda t: self._gloo.all_to_all(t, numbers, rows_from, rows_to),
        )

    def held_bytes(self):
        return 0

    def own_end(self):
        return None

    def abort(self):
        self._aborted.set()
        self._gloo.abort()
        until_s = time.monotonic() + ABORT_S
        while any(wire.underway and not wire._aborted.is_set() for wire in list(self._ALL)):
            if time.monotonic() > until_s:
                RULES.note("aborts one by one", self._name)  # it would not come back
                return
            time.sleep(0.001)

    def release(self):
        return self._gloo.release()

    def _issue(self, what, peer, tensor, begin, number=-1):
        if not isinstance(tensor, Simulated):
            RULES.offend("host tensor on a wire", what)
        if not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        thread = threading.current_thread().name.replace("Dummy-1", "autograd")
        if thread not in TRAINS:
            RULES.offend("another thread issues", f"{what} in {thread}")
        about = (thread, self._name, what, peer, self._place, self._size, number)
        with _LOCK:
            row = Row("issue", next(_NUMBERS), *about)
            LOG.append([*row])
        numbers = numbers_of(tensor)
        try:
            work = begin(numbers)
        except RuntimeError:  # NCCL would queue it, and say nothing
            work = None
        self.underway += 1
        return _Work(row, work, numbers, self)


class _Work:
    def __init__(self, row, work, numbers, wire) -> None:
        self._row, self._work, self._numbers, self._wire = row, work, numbers, wire
        self._aborted = wire._aborted

    def wait(self) -> None:
        with _LOCK:
            LOG.append([*self._row._replace(kind="wait")])
        try:
            if self._work is None:
                raise RuntimeError
            self._work.wait()
            self._wire.underway -= 1
        except RuntimeError:
            assert self._aborted.wait(LIMIT_S), "nobody aborts the wire of a dead peer"
        if self._aborted.is_set() and self._row.what != "send":
            self._numbers.fill_(GARBAGE)
            LOG.append([*self._row._replace(kind="garbage")])
