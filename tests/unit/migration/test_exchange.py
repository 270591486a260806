"""A message that is stale, damaged or unexpected never passes for state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from migration import exchange
from migration.errors import TransferFailed
from migration.exchange import HEADER, exchange_state
from tests.fakes.transport import Board
from tests.laws.migration.changes import Change, cut, whole_state
from tests.unit.worker.changes import plan

STATE = whole_state()
ONE_TO_TWO = Change(plan("1x3"), plan("1x3", first_gpu=1), frozenset())


class Tampered:
    """A transport whose outgoing tensors are changed on the way."""

    def __init__(self, transport, change):
        self._transport, self._change = transport, change

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def post_send(self, peer, tensor):
        tensor = tensor.clone()
        self._change(tensor.view(-1).view(torch.uint8))
        return self._transport.post_send(peer, tensor)


def held(part):
    return cut(STATE, part.box)


def run(change=lambda sent: None, epochs=(2, 2), read=held, alter=None, in_rounds=False):
    """GPU 1 joins, GPU 0 leaves; what both ended with, and what GPU 1 received."""
    transfer = ONE_TO_TWO.transfer(message_bytes=4096)
    came = {name: [torch.zeros_like(p) for p in parts] for name, parts in STATE.items()}
    ends = Board(2).transports(in_rounds=in_rounds)
    sender = next(run.sender for run in transfer.runs)
    ends[sender] = ends[sender] if in_rounds else Tampered(ends[sender], change)

    def act(rank):
        mine = alter(transfer) if alter and rank == sender else transfer
        try:
            exchange_state(
                mine, ends[rank], read, lambda p: cut(came, p.box), epoch=epochs[rank], step=7
            )
        except TransferFailed as error:
            ends[rank].close()
            return error
        return None

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(act, range(2)))
    return results[sender], results[1 - sender], came


def is_whole(came):
    return all(
        torch.equal(part, expected)
        for name, parts in came.items()
        for part, expected in zip(parts, STATE[name], strict=True)
    )


@pytest.mark.parametrize("direct_bytes", [1, 1 << 20], ids=["straight", "by the buffer"])
def test_state_arrives_whole_in_its_tensors(monkeypatch, direct_bytes):
    """Strided views too: MODEL has tensors of which columns travel."""
    monkeypatch.setattr(exchange, "DIRECT_BYTES", direct_bytes)
    sender, receiver, came = run()
    assert (sender, receiver) == (None, None)
    assert is_whole(came)


def test_over_what_has_rounds_no_message_is_outside_of_one(monkeypatch):
    """It refuses others, as NCCL's transport does: two first sends would wait for each other."""
    monkeypatch.setattr(exchange, "DIRECT_BYTES", 1)
    sender, receiver, came = run(in_rounds=True)
    assert (sender, receiver) == (None, None)
    assert is_whole(came)


def test_strided_parts_arrive_whole(monkeypatch):
    monkeypatch.setattr(exchange, "DIRECT_BYTES", 1)

    def strided(part):
        return tuple(v.t().contiguous().t() if v.dim() > 1 else v for v in cut(STATE, part.box))

    assert is_whole(run(read=strided)[2])


@pytest.mark.parametrize("direct_bytes", [1, 1 << 20], ids=["straight", "by the buffer"])
def test_one_flipped_bit_is_noticed(monkeypatch, direct_bytes):
    monkeypatch.setattr(exchange, "DIRECT_BYTES", direct_bytes)
    flips = iter([1])

    def flip(sent):
        if len(sent) > HEADER.size:
            sent[-1] ^= next(flips, 0)

    _, receiver, _ = run(flip)
    assert "damaged on its way" in str(receiver)


def test_a_flipped_fingerprint_is_noticed():
    def flip(sent):
        sent[HEADER.size - 1] ^= 1

    assert "damaged on its way" in str(run(flip)[1])


def test_a_message_of_another_epoch_is_noticed():
    """Rank 0 is the joiner, which expects epoch 2."""
    assert "(epoch, step, sequence, bytes) (1, 7, 0, " in str(run(epochs=(2, 1))[1])


def test_ranks_that_disagree_about_the_transfer_send_nothing():
    sent = []
    sender, receiver, came = run(
        sent.append, alter=lambda transfer: replace(transfer, message_bytes=5000)
    )
    assert "ranks disagree about the plan" in str(sender)
    assert "ranks disagree about the plan" in str(receiver)
    assert sent == []
    assert not any(p.any() for parts in came.values() for p in parts)


def test_a_sender_without_the_bytes_says_so():
    sender, _, _ = run(read=lambda part: held(part)[:1])
    assert "does not sit where the plan says" in str(sender)
