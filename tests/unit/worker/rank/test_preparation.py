"""rank/preparation.py: it meets the others beside the training, or says why not in one line."""

from __future__ import annotations

import threading

import pytest
from torch.distributed import HashStore

from migration.errors import TransferFailed
from tests.fakes.transport import Board
from tests.unit.worker.changes import MODEL, change, plan
from worker.rank.preparation import Preparation

DIRECTIVE = change(plan("1x2"), plan("1x1+1x1"))


class InMemory:
    """What a preparation asks of `Services`, over stores and transports in memory.

    `meeting` is awaited before the members have met; `fault` is raised in place of meeting.
    """

    def __init__(self, fault=None):
        self.meeting = threading.Event()
        self.meeting.set()
        self.asked = []
        self.store, self.board = HashStore(), Board(2)
        self._fault = fault

    def on_phase(self, name):
        self.asked.append(name)

    def connect_store(self, address):
        self.asked.append(address)
        return self.store

    def form_transport(self, store, prefix, rank, size):
        assert store is self.store
        self.asked.append((prefix, rank, size))
        assert self.meeting.wait(10)
        if self._fault is not None:
            raise self._fault
        return self.board.transports()[rank]


def ended(preparation):
    """Once its thread has come back."""
    for thread in threading.enumerate():
        if thread.name == "prepare-epoch":
            thread.join(10)
    assert not preparation.running
    return preparation


def prepare(services, slot=1, pod="tiny-a-0"):
    return Preparation(MODEL, DIRECTIVE, pod, slot, services)


def test_once_all_have_met_there_are_move_store_and_transport():
    services = InMemory()
    found = ended(prepare(services))
    move, store, transport = found.result
    assert (move.transport_rank, store, transport.rank) == (1, services.store, 1)
    assert services.asked == ["prepare", DIRECTIVE.store, ("epoch2/transport", 1, 2)]
    assert (found.epoch, found.error) == (2, None)


def test_while_the_others_are_awaited_there_is_no_result():
    services = InMemory()
    services.meeting.clear()
    waiting = prepare(services)
    assert waiting.running
    assert waiting.result is None
    services.meeting.set()
    assert ended(waiting).result is not None


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_cancelled_closes_its_transport_whenever_it_comes(when):
    services = InMemory()
    if when == "before":
        services.meeting.clear()
        cancelled = prepare(services)
        cancelled.cancel()
        services.meeting.set()
    else:
        cancelled = ended(prepare(services))
        cancelled.cancel()
    assert ended(cancelled).result is None
    assert services.board.closed == {1}
    assert cancelled.error is None


def test_a_preparation_that_is_kept_closes_nothing():
    services = InMemory()
    ended(prepare(services))
    assert services.board.closed == set()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (TransferFailed("nobody came\nwith advice"), "cannot prepare epoch 2: nobody came"),
        (RuntimeError(), "cannot prepare epoch 2: RuntimeError()"),
    ],
    ids=["words", "no words"],
)
def test_a_failure_is_one_line_and_no_result(fault, sentence):
    found = ended(prepare(InMemory(fault)))
    assert found.error == sentence
    assert found.result is None


def test_a_rank_that_is_no_member_is_told_so_and_meets_nobody():
    services = InMemory()
    found = ended(prepare(services, slot=3))
    assert found.error == "cannot prepare epoch 2: rank (tiny-a-0, 3) is no member of epoch 2"
    assert services.asked == ["prepare"]
