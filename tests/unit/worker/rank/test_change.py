"""rank/change.py: what a rank knows of the next epoch, and when an abort cuts its transport."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from migration.nccl_transport import NcclTransport
from tests.fakes.transport import Board
from tests.unit.worker.changes import MODEL, change, held_by, plan
from tests.unit.worker.preparing import InMemory, ended
from worker.control.connections import connections
from worker.rank import preparation
from worker.rank.change import Change
from worker.rank.preparation import Prepared, Successor
from worker.state.still import StillState

LIMIT_S = 10.0
OLD = plan("1x2")
DIRECTIVE = change(OLD, plan("1x1+1x1"))


@contextlib.contextmanager
def connected():
    """A TCP connection: (this end, the peer's end, its inodes)."""
    before = connections()
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname(), timeout=5)
        there, _ = server.accept()
    with here, there:
        there.settimeout(0.2)
        yield here, there, connections() - before


@pytest.fixture
def line():
    with connected() as line:
        yield line


def moving(inodes, epoch=2):
    """A `Prepared` as far as `Change` reads it."""
    move = SimpleNamespace(directive=SimpleNamespace(epoch=epoch))
    return Prepared(
        move=move,
        store=None,
        transport=Board(1).transports()[0],
        connections=inodes,
        successor=None,
    )


def is_cut(line):
    try:
        return line[1].recv(1) == b""
    except TimeoutError:
        return False


def a_change(services=None):
    return Change("tiny-a-0", 0, services or InMemory(), StillState())


@pytest.mark.parametrize("epoch", [2, 3])
def test_an_abort_cuts_the_transport_of_the_move_under_way(line, epoch):
    found = a_change()
    found.move_begins(moving(line[2]))
    found.call_off(epoch)
    assert is_cut(line)


def test_an_abort_of_an_older_epoch_cuts_nothing(line):
    found = a_change()
    found.move_begins(moving(line[2]))
    found.call_off(1)
    assert not is_cut(line)


def test_before_the_move_and_after_it_an_abort_cuts_nothing(line):
    found = a_change()
    found.move_begins(moving(line[2]))
    found.move_ends()
    found.call_off(2)
    assert not is_cut(line)
    assert found.abort_epoch == 2


def test_a_move_that_was_called_off_before_it_began_is_cut_at_once(line):
    found = a_change()
    found.call_off(2)
    assert not is_cut(line)
    found.move_begins(moving(line[2]))
    assert is_cut(line)


def prepared(services):
    """A change whose preparation has come back."""
    found = a_change(services)
    found.prepare(MODEL, DIRECTIVE, held_by(OLD, "a", 0))
    ended(found._preparation)
    return found


def test_a_rank_is_ready_once_it_is_prepared_and_told_to_switch():
    found = prepared(InMemory())
    assert (found.ready_epoch, found.prepared, found.is_preparing) == (None, None, True)
    assert found.poll() == (True, None)
    assert found.poll() == (False, None)
    assert (found.announced, found.ready_epoch, found.prepared) == (2, None, None)
    found.switch_epoch = 2
    assert found.ready_epoch == 2
    assert found.prepared.move.directive == DIRECTIVE


def test_told_to_switch_before_it_is_prepared_it_is_not_ready():
    found = a_change()
    found.switch_epoch = 2
    assert (found.ready_epoch, found.prepared) == (None, None)


def test_a_failure_is_news_once_and_the_epoch_has_failed():
    fault = ConnectionError("nobody came")
    found = prepared(InMemory(form_world=fault))
    found.switch_epoch = 2
    assert found.poll() == (True, fault)
    assert found.poll() == (False, None)
    assert (found.failed_epoch, found.announced, found.switch_epoch) == (2, None, None)
    assert not found.is_preparing


def test_the_same_directive_is_not_prepared_twice_but_one_with_another_store_is():
    found = prepared(InMemory())
    assert found.is_preparing_for(DIRECTIVE)
    for key, value in (("store", "127.0.0.1:2"), ("epoch", 3)):
        assert not found.is_preparing_for(DIRECTIVE.model_copy(update={key: value}))


def test_a_newer_directive_gives_up_what_was_prepared():
    services = InMemory()
    found = prepared(services)
    found.poll()
    found.prepare(MODEL, DIRECTIVE.model_copy(update={"epoch": 3}), held_by(OLD, "a", 0))
    assert services.world.done == ["broken", "leave"]
    assert found.announced is None
    ended(found._preparation)


@pytest.mark.parametrize(("epoch", "is_its"), [(2, True), (3, False)])
def test_an_abort_gives_up_its_own_epoch_only(epoch, is_its):
    services = InMemory()
    found = prepared(services)
    assert found.abort(epoch) is is_its
    assert found.abort_epoch == epoch
    assert found.is_preparing is not is_its
    assert bool(services.world.done) is is_its


def test_what_is_in_use_is_forgotten_and_not_freed():
    services = InMemory()
    found = prepared(services)
    found.poll()
    found.take()
    found.forget()
    assert (services.world.done, services.engine.done) == ([], [])
    assert (found.is_preparing, found.announced, found.switch_epoch) == (False, None, None)


def test_what_a_halt_ends_beside_the_world_is_every_connection_or_that_of_nccl_s_move(line):
    """NCCL's own connections are left: a thread that serves one that was cut may not end."""

    class Ended(NcclTransport):
        def __init__(self):
            self.said = []

        def break_(self, why, limit_s):
            self.said.append((why, limit_s))

    services, successor = InMemory(), Successor(Ended(), None, None)
    services.payload = services.payload._replace(name="nccl")
    found, transport = a_change(services), Ended()
    found.move_begins(replace(moving(line[2]), transport=transport, successor=successor))
    found.end_waits()
    # also the new world, whose first operations may hang; and a heart that beats waits for neither
    assert transport.said == successor.world.said == [("the change was called off", 0.0)]
    assert not is_cut(line)
    a_change().end_waits()
    assert is_cut(line)


class Connects(InMemory):
    """A world that connects while it forms, and an engine that hangs, then fails."""

    def __init__(self, wire, stack):
        super().__init__(build_engine=ConnectionError("nobody came"))
        self.payload = self.payload._replace(name=wire)
        self.stack, self.builds_on = stack, threading.Event()

    def form_world(self, *where):
        self.line = self.stack.enter_context(connected())
        return super().form_world(*where)

    def build_engine(self, build):
        self.on_phase("hangs")
        assert self.builds_on.wait(LIMIT_S)
        return super().build_engine(build)


@pytest.mark.parametrize(("wire", "cuts"), [("gloo", True), ("nccl", False)])
@pytest.mark.parametrize("is_called_off", [False, True])
def test_a_preparation_that_ends_cuts_its_connections_but_none_of_nccl_s(
    wire, cuts, is_called_off, monkeypatch
):
    """Store, transport and world end themselves then, so that no peer waits for this rank."""
    monkeypatch.setattr(preparation, "NOTICE_S", 0.05)
    monkeypatch.setattr(preparation, "END_S", 0.05)
    with contextlib.ExitStack() as stack:
        services = Connects(wire, stack)
        found = a_change(services)
        found.prepare(MODEL, DIRECTIVE, held_by(OLD, "a", 0))
        first, deadline_s = found._preparation, time.monotonic() + LIMIT_S
        while "hangs" not in services.asked and time.monotonic() < deadline_s:
            time.sleep(0.001)
        if is_called_off:  # its thread comes back late; the next one begins meanwhile
            found.abort(DIRECTIVE.epoch)
            found._services = other = InMemory()
            newer = DIRECTIVE.model_copy(update={"epoch": 3})
            found.prepare(MODEL, newer, held_by(OLD, "a", 0))
            ended(found._preparation)
            assert other.given_up() == (False, set(), [], [])
            assert first.running
        else:
            services.builds_on.set()
            ended(first)
        if wire == "nccl":
            assert services.given_up() == (True, {0}, ["broken", "leave"], [])
        assert is_cut(services.line) is cuts
        services.builds_on.set()
        ended(first)
        found.forget()
