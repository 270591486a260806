"""A message that is short, stale, damaged or unexpected never passes for state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from migration.errors import TransferFailed
from migration.execute import HEADER, exchange_state
from migration.schedule import Schedule, arrange
from migration.tuples import MigrationTuple
from planner.plans.pieces import Piece
from tests.fakes.transport import Board

PIECE = Piece("1.q", 0, 2)
SHAPES = {PIECE: (2, 3)}
PARTS = tuple(torch.arange(6.0).view(2, 3) + 10 * part for part in range(3))
SCHEDULE = arrange((MigrationTuple(PIECE, 0, 1, 0, 32), MigrationTuple(PIECE, 0, 1, 32, 72)), 40)


class Tampered:
    """A transport whose outgoing messages are changed on the way."""

    def __init__(self, transport, change):
        self._transport, self._change = transport, change

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def exchange(self, sends, receives):
        for _, body in sends:
            self._change(body)
        self._transport.exchange(sends, receives)


def run(change=lambda body: None, schedules=(SCHEDULE, SCHEDULE), epochs=(2, 2), read=None):
    sender, receiver = Board(2).transports()
    ends = (Tampered(sender, change), receiver)

    def act(rank):
        try:
            return exchange_state(
                schedules[rank],
                ends[rank],
                read or (lambda piece: PARTS),
                SHAPES,
                epoch=epochs[rank],
                step=7,
            )
        except TransferFailed as error:
            ends[rank].close()
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(act, range(2)))


def test_parts_cut_into_two_messages_arrive_whole():
    sent, received = run()
    assert sent == {}
    assert all(torch.equal(a, b) for a, b in zip(received[PIECE], PARTS, strict=True))


def test_strided_parts_arrive_whole():
    parts = tuple(part.t().contiguous().t() for part in PARTS)
    assert not parts[0].is_contiguous()
    _, received = run(read=lambda piece: parts)
    assert all(torch.equal(a, b) for a, b in zip(received[PIECE], PARTS, strict=True))


def flip_one_bit(body):
    body[HEADER.size + 5] ^= 1


def flip_the_checksum(body):
    body[HEADER.size - 8] ^= 1


@pytest.mark.parametrize("change", [flip_one_bit, flip_the_checksum])
def test_one_flipped_bit_is_noticed(change):
    _, receiver = run(change)
    assert isinstance(receiver, TransferFailed)
    assert "damaged on its way" in str(receiver)


def test_a_message_of_another_epoch_is_noticed():
    _, receiver = run(epochs=(1, 2))
    assert isinstance(receiver, TransferFailed)
    assert "(1, 7, 0, " in str(receiver)


def test_ranks_that_disagree_about_the_schedule_send_nothing():
    sent = []
    results = run(sent.append, schedules=(SCHEDULE, Schedule(())))
    assert all("ranks disagree about the schedule" in str(result) for result in results)
    assert sent == []


def test_a_sender_without_the_bytes_says_so():
    sender, _ = run(read=lambda piece: PARTS[:1])
    assert "holds 24 of the 32 bytes" in str(sender)
