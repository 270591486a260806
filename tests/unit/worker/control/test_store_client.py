"""worker/control/store_client.py: it waits as a store does, until it is told to give up."""

from __future__ import annotations

import datetime
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore, PrefixStore, ProcessGroupGloo

from tests.unit.worker.control.stores import KEY, Served
from worker.control import store_client
from worker.control.connections import connections, cut
from worker.control.store_client import TRY_S, StoreClient, connect
from worker.errors import RendezvousFailed, StoreGone

DEADLINE_S = 0.5
FAR_TOO_LONG_S = 20.0
SERVER = """
import socket, sys
from worker.control.store import main
main(socket.socket(fileno=int(sys.argv[1])), "127.0.0.1", sys.argv[2])
"""


def test_what_is_written_is_read_through_a_prefix_too():
    inner = HashStore()
    patient = StoreClient(inner)
    store = PrefixStore("epoch1", patient)
    store.set("a", "1")
    assert (store.get("a"), inner.get("epoch1/a")) == (b"1", b"1")
    assert (store.add("n", 2), store.add("n", 3)) == (2, 5)
    assert store.check(["a"])
    assert not store.check(["b"])
    assert store.compare_set("a", "1", "2") == b"2"


def test_a_value_is_waited_for():
    inner = HashStore()
    threading.Timer(0.02, inner.set, ("late", "x")).start()
    assert StoreClient(inner).get("late") == b"x"


def test_a_wait_ends_when_it_is_given_up_or_takes_too_long():
    start = time.monotonic()
    told = StoreClient(HashStore(), lambda: time.monotonic() > start + 0.02)
    with pytest.raises(RendezvousFailed, match="the epoch was given up while its ranks met"):
        told.get("never")
    with pytest.raises(RendezvousFailed, match=r"did not come within 0\.01 s \(never\)"):
        StoreClient(HashStore()).wait(["never"], datetime.timedelta(seconds=0.01))
    assert time.monotonic() < start + 10.0


def test_torch_forms_a_group_through_it_or_gives_up_forming():
    inner, timeout = HashStore(), datetime.timedelta(seconds=30)
    patients, groups = [], []

    def form(rank: int) -> None:
        store = StoreClient(inner)
        patients.append(store)
        groups.append(ProcessGroupGloo(PrefixStore("g", store), rank, 2, timeout))

    threads = [threading.Thread(target=form, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    tensors = [torch.ones(1), torch.ones(1)]
    works = [group.allreduce([tensor]) for group, tensor in zip(groups, tensors, strict=True)]
    for work in works:
        work.wait()
    assert [tensor.item() for tensor in tensors] == [2.0, 2.0]
    alone, start = StoreClient(inner, lambda: True), time.monotonic()
    with pytest.raises(RendezvousFailed, match="given up"):
        ProcessGroupGloo(PrefixStore("h", alone), 0, 2, timeout)
    assert time.monotonic() < start + 10.0


@pytest.fixture
def stopped():
    """(the address of a store in a process of its own, how to stop it)."""
    ours, theirs = socket.socketpair()
    with ours:
        served = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(theirs.fileno()), KEY], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        at_last = threading.Timer(FAR_TOO_LONG_S, served.kill)  # which ends all calls

        def stop():
            served.send_signal(signal.SIGSTOP)
            at_last.start()

        try:
            with ours.makefile("rb") as lines:
                yield json.loads(next(lines))["address"], stop
        finally:
            at_last.cancel()
            served.kill()
            served.wait()


def test_a_store_that_is_stopped_costs_a_call_its_deadline_and_no_more(stopped):
    address, stop = stopped
    clients = [connect(address, KEY, 1, deadline_s=DEADLINE_S) for _ in range(2)]
    clients.append(clients[0].clone())
    for client in clients:
        client.add("n", 1)
    stop()
    calls = (
        lambda: clients[0].add("n", 1),
        lambda: clients[1].wait(["n"]),
        lambda: clients[2].compare_set("n", "", "1"),
        lambda: connect(address, KEY, 1, deadline_s=DEADLINE_S),
    )
    with ThreadPoolExecutor(len(calls)) as pool:
        for lasted_s in pool.map(until_error, calls):
            assert DEADLINE_S / 2 < lasted_s < FAR_TOO_LONG_S / 2


def until_error(call):
    start_s = time.monotonic()
    with pytest.raises(StoreGone):
        call()
    return time.monotonic() - start_s


@pytest.fixture
def served():
    store = Served()
    yield store
    store.end()


def test_after_an_error_no_answer_is_taken_for_that_of_another_call(stopped):
    address, stop = stopped
    client = connect(address, KEY, 1, deadline_s=0.2)
    client.set("a", "1")
    stop()
    for call in (lambda: client.add("n", 1), lambda: client.get("a")):
        assert until_error(call) < FAR_TOO_LONG_S / 2


def test_a_call_whose_connection_is_cut_ends_at_once(served):
    before = connections()
    client = served.client()
    own = connections() - before
    cut(own)
    assert until_error(lambda: client.add("n", 1)) < store_client.DEADLINE_S / 2
    client.close()


def test_a_clone_is_another_client_of_the_same_store(served):
    """It waits no longer than its original, and is closed with it."""
    given_up = threading.Event()
    client = served.client(is_cancelled=given_up.is_set)
    clone = client.clone()
    client.set("a", "1")
    assert clone.get("a") == b"1"
    given_up.set()
    with pytest.raises(RendezvousFailed, match="given up"):
        clone.get("never")
    client.close()
    for closed in (client, clone):
        until_error(lambda closed=closed: closed.check(["a"]))


def test_torch_forms_a_group_at_a_real_store(served):
    """Its addresses are bytes of any value, and its calls come from C++."""
    timeout = datetime.timedelta(seconds=30)
    clients = [served.client() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        groups = list(
            pool.map(
                lambda r: ProcessGroupGloo(PrefixStore("g", clients[r]), r, 2, timeout), (0, 1)
            )
        )
    works = [group.allreduce([torch.ones(1)]) for group in groups]
    for work in works:
        work.wait()
        assert work.result()[0].item() == 2.0


def test_who_was_cancelled_gives_up_a_store_that_is_dead_within_one_try():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    began_s = time.monotonic()
    with pytest.raises(StoreGone):
        connect(f"127.0.0.1:{port}", KEY, 1, lambda: True, deadline_s=60.0)
    assert time.monotonic() - began_s < 8 * TRY_S
