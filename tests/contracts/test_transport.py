"""What every `Transport` must do: in memory, over gloo, through staging memory, in rounds."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from migration.errors import TransferFailed
from migration.gloo_transport import GlooTransport
from migration.transfer import MAX_OPERATIONS
from tests.fakes.gloo_group import GARBAGE, form_garbage, form_gloo
from tests.fakes.transport import Board
from worker.device.device import CPU, CpuDevice
from worker.world.nccl_wire import NcclWire
from worker.world.payload import nccl_transport
from worker.world.staged_transport import StagedTransport

_PREFIXES = (f"change-{count}" for count in itertools.count())


def _memory(size):
    return Board(size, timeout_s=10).transports()


def _gloo(size):
    store, prefix = HashStore(), next(_PREFIXES)
    with ThreadPoolExecutor(size) as pool:
        return list(
            pool.map(lambda rank: GlooTransport.form(store, prefix, rank, size, 10), range(size))
        )


def _staged(size):
    return [StagedTransport(transport, CpuDevice()) for transport in _gloo(size)]


def _rounds(size, form_group=form_gloo):
    """NCCL's transport; its wire is NCCL's over gloo's groups, which form in the same way."""
    store, prefix = HashStore(), next(_PREFIXES)

    def form(rank):
        return nccl_transport(
            store,
            prefix,
            rank,
            size,
            form_wire=NcclWire.over(form_group),
            device=CPU,
            patience_s=10,
        )

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(form, range(size)))


def _garbage(size):
    """Likewise, over groups that notice no dead peer and end with garbage, as NCCL's do."""
    return _rounds(size, form_garbage)


@pytest.fixture(
    params=[_memory, _gloo, _staged, _rounds, _garbage],
    ids=["memory", "gloo", "staged", "rounds", "garbage"],
)
def form(request, monkeypatch):
    """Form a group of that size; all its ranks are closed after the test."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    formed = []

    def form(size):
        formed.append(request.param(size))
        return formed[-1]

    yield form
    for transport in itertools.chain.from_iterable(formed):
        transport.close(wait=True)


def together(transports, act):
    """Run `act(transport)` on every rank at once; an error is a result."""

    def guarded(transport):
        try:
            return act(transport)
        except TransferFailed as error:
            return error

    with ThreadPoolExecutor(len(transports)) as pool:
        return list(pool.map(guarded, transports))


def exchange(transport, sends, receives):
    """Post all, then wait for all in the order in which they were posted."""
    if transport.in_rounds:
        transport.exchange(sends, receives).wait()
        return
    pending = [transport.post_send(peer, body) for peer, body in sends]
    pending += [transport.post_receive(peer, body) for peer, body in receives]
    for one in pending[len(sends) :] + pending[: len(sends)]:
        one.wait()


def message(length, seed=0):
    return torch.arange(seed, seed + length).to(torch.uint8)


def test_rank_and_size_are_those_of_the_group(form):
    assert [(t.rank, t.size) for t in form(3)] == [(0, 3), (1, 3), (2, 3)]


def test_messages_of_all_sizes_arrive_between_all_pairs_whole(form):
    sizes = (1, 40, 4097, 300_000)

    def act(transport):
        peers = [peer for peer in range(3) if peer != transport.rank]
        sends = [(peer, message(n, 10 * transport.rank + peer)) for peer in peers for n in sizes]
        receives = [(peer, torch.zeros(n, dtype=torch.uint8)) for peer in peers for n in sizes]
        exchange(transport, sends, receives)
        return all(
            torch.equal(body, message(body.numel(), 10 * peer + transport.rank))
            for peer, body in receives
        )

    assert together(form(3), act) == [True, True, True]


def test_messages_of_a_pair_keep_their_order(form):
    def act(transport):
        if transport.rank == 0:
            for start in (0, 16):
                exchange(transport, [(1, message(8, start + k)) for k in range(16)], [])
            return None
        got = [(0, torch.zeros(8, dtype=torch.uint8)) for _ in range(32)]
        exchange(transport, [], got[:16])
        exchange(transport, [], got[16:])
        return [int(body[0]) for _, body in got]

    assert together(form(2), act)[1] == list(range(32))


def test_a_send_may_be_overwritten_after_the_call(form):
    def act(transport):
        body = message(64, 7)
        if transport.rank == 0:
            exchange(transport, [(1, body)], [])
            body.zero_()
            return None
        body.zero_()
        exchange(transport, [], [(0, body)])
        return body

    assert torch.equal(together(form(2), act)[1], message(64, 7))


def test_a_rank_without_messages_need_not_wait(form):
    transports = form(2)
    exchange(transports[0], [], [])
    assert transports[0].bytes_sent == 0


def test_counters_count_the_bytes_of_messages(form):
    def act(transport):
        if transport.rank == 0:
            exchange(transport, [(1, message(100)), (2, message(7))], [])
        else:
            size = {1: 100, 2: 7}[transport.rank]
            exchange(transport, [], [(0, torch.zeros(size, dtype=torch.uint8))])
        return transport.bytes_sent, transport.bytes_received

    assert together(form(3), act) == [(107, 0), (0, 100), (0, 7)]


@pytest.mark.parametrize(("op", "expected"), [("sum", [3, 6]), ("min", [0, 1]), ("max", [2, 3])])
def test_a_reduction_reaches_every_rank(form, op, expected):
    def act(transport):
        tensor = torch.tensor([transport.rank, transport.rank + 1])
        transport.all_reduce_(tensor, op)
        return tensor.tolist()

    assert together(form(3), act) == [expected] * 3


def test_reductions_keep_all_63_bits(form):
    high = (1 << 63) - 1

    def act(transport):
        tensor = torch.tensor([high - transport.rank, -high + transport.rank])
        transport.all_reduce_(tensor, "max")
        return tensor.tolist()

    assert together(form(2), act) == [[high, -high + 1]] * 2


def test_a_reduction_is_a_barrier(form):
    reached = threading.Event()

    def act(transport):
        if transport.rank == 0:
            reached.set()
        transport.all_reduce_(torch.zeros(1), "sum")
        return reached.is_set()

    assert together(form(3), act) == [True, True, True]


def test_a_tensor_of_any_shape_is_sent_and_received_where_it_lies(form):
    """Rows of a larger tensor travel without a copy: what lies around them stays."""
    whole = torch.arange(24.0).view(6, 4)

    def act(transport):
        if transport.rank == 0:
            exchange(transport, [(1, whole[2:4])], [])
            return None
        place = torch.zeros(6, 4)
        exchange(transport, [], [(0, place[1:3])])
        return place

    place = together(form(2), act)[1]
    assert torch.equal(place[1:3], whole[2:4])
    assert place.count_nonzero() == 8


def test_many_messages_are_under_way_both_ways_at_once(form):
    """Both ranks post all their sends before either receives."""

    def act(transport):
        peer = 1 - transport.rank
        got = [torch.zeros(5000, dtype=torch.uint8) for _ in range(16)]
        sends = [(peer, message(5000, k)) for k in range(16)]
        exchange(transport, sends, [(peer, body) for body in got])
        return [int(body[0]) for body in got]

    assert together(form(2), act) == [list(range(16))] * 2


@pytest.mark.parametrize("call", ["exchange", "reduce"])
def test_when_a_rank_closes_all_others_fail_soon(form, call):
    """Rank 0 waits on rank 1, that on rank 2, which goes: rank 1 errs, closes, so rank 0 errs."""
    kept = []

    def act(transport):
        started = time.monotonic()
        if transport.rank == 2:
            transport.close()
            return 0.0
        try:
            if call == "reduce":
                transport.all_reduce_(torch.zeros(1), "sum")
            else:
                exchange(transport, [], [(transport.rank + 1, torch.zeros(4, dtype=torch.uint8))])
        except TransferFailed as error:
            kept.append(error)  # even if somebody keeps the error, the group goes
            transport.close()
            return time.monotonic() - started
        return None

    seconds = together(form(3), act)
    assert len(kept) == 2
    assert max(seconds) < 5


def test_a_closed_transport_refuses_further_calls(form):
    transport = form(2)[0]
    transport.close()
    transport.close()
    with pytest.raises(TransferFailed, match="closed"):
        exchange(transport, [(1, message(4))], [])
    with pytest.raises(TransferFailed, match="closed"):
        transport.all_reduce_(torch.zeros(1), "sum")


def test_messages_of_a_round_wait_for_no_other_of_it(form):
    """Both send first, and both receive, in one call each."""

    def act(transport):
        peer, got = 1 - transport.rank, torch.zeros(300_000, dtype=torch.uint8)
        transport.exchange([(peer, message(300_000, transport.rank))], [(peer, got)]).wait()
        return torch.equal(got, message(300_000, peer))

    assert together(form(2), act) == [True, True]


def test_a_message_outside_a_round_and_a_round_too_large_are_refused_by_what_has_rounds():
    transports = _rounds(2)
    try:
        for call in (transports[0].post_send, transports[0].post_receive):
            with pytest.raises(TransferFailed, match="outside a round"):
                call(1, message(4))
        with pytest.raises(TransferFailed, match="operations"):
            transports[0].exchange([(1, message(4))] * (MAX_OPERATIONS + 1), [])
        assert transports[0].bytes_sent == 0
    finally:
        for transport in transports:
            transport.close(wait=True)


@pytest.mark.parametrize("call", ["exchange", "reduce"])
@pytest.mark.parametrize("rounds", [_rounds, _garbage])
def test_what_has_rounds_ends_its_waits_from_another_thread(call, rounds):
    transports = rounds(2)

    def act(transport):
        if transport.rank == 1:
            transports[0].break_("the change was called off")
            return None
        if call == "reduce":
            return transport.all_reduce_(torch.zeros(1), "sum")
        return exchange(transport, [], [(1, torch.zeros(4, dtype=torch.uint8))])

    try:
        assert isinstance(together(transports, act)[0], TransferFailed)
        with pytest.raises((TransferFailed, ConnectionError), match="called off"):
            transports[0].host(torch.zeros(1))
    finally:
        for transport in transports:
            transport.close(wait=True)


def test_a_round_that_ended_holds_garbage_and_says_so():
    """Of groups with NCCL's law; a wait that returned as if all were well would be used."""
    transports = _garbage(2)
    came = torch.full((4,), 7.0)

    def act(transport):
        if transport.rank == 1:
            transports[0].break_("the change was called off")
            return None
        transport.exchange([], [(1, came)]).wait()
        return came

    try:
        assert isinstance(together(transports, act)[0], TransferFailed)
        assert came.tolist() == [GARBAGE] * 4
    finally:
        for transport in transports:
            transport.close(wait=True)
