"""worker/control/store_client.py: it waits as a store does, until it is told to give up."""

from __future__ import annotations

import datetime
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore, PrefixStore, ProcessGroupGloo, TCPStore

from worker.control.connections import connections
from worker.control.store_client import TRY_S, StoreClient, connect
from worker.errors import RendezvousFailed

DEADLINE_S = 0.5
FAR_TOO_LONG_S = 5.0
SERVER = """
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(f"127.0.0.1:{store.port}", flush=True)
input()
"""


def test_what_is_written_is_read_through_a_prefix_too():
    inner = HashStore()
    patient = StoreClient(inner, lambda: False, 5.0)
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
    assert StoreClient(inner, lambda: False, 5.0).get("late") == b"x"


def test_a_wait_ends_when_it_is_given_up_or_takes_too_long():
    start = time.monotonic()
    told = StoreClient(HashStore(), lambda: time.monotonic() > start + 0.02, 30.0)
    with pytest.raises(RendezvousFailed, match="the epoch was given up while its ranks met"):
        told.get("never")
    with pytest.raises(RendezvousFailed, match=r"did not come within 0\.01 s \(never\)"):
        StoreClient(HashStore(), lambda: False, 30.0).wait(
            ["never"], datetime.timedelta(seconds=0.01)
        )
    assert time.monotonic() < start + 10.0


def test_torch_forms_a_group_through_it_or_gives_up_forming():
    inner, timeout = HashStore(), datetime.timedelta(seconds=30)
    patients, groups = [], []

    def form(rank: int) -> None:
        store = StoreClient(inner, lambda: False, 30.0)
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
    alone, start = StoreClient(inner, lambda: True, 30.0), time.monotonic()
    with pytest.raises(RendezvousFailed, match="given up"):
        ProcessGroupGloo(PrefixStore("h", alone), 0, 2, timeout)
    assert time.monotonic() < start + 10.0


@pytest.fixture
def stopped():
    """(a store in a process of its own, its clients' deadline in seconds, how to stop it)."""
    served = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    at_last = threading.Timer(FAR_TOO_LONG_S, served.kill)  # which ends all calls

    def stop():
        served.send_signal(signal.SIGSTOP)
        at_last.start()

    try:
        yield served.stdout.readline().strip(), stop
    finally:
        at_last.cancel()
        served.kill()
        served.communicate()


@pytest.mark.slow  # a process with torch
def test_a_store_that_is_stopped_costs_a_call_its_deadline_and_no_more(stopped):
    address, stop = stopped
    clients = [connect(address, deadline_s=DEADLINE_S) for _ in range(2)]
    clients.append(clients[0].clone())
    for client in clients:
        client.add("n", 1)
    stop()
    calls = (
        lambda: clients[0].add("n", 1),
        lambda: clients[1].wait(["n"]),
        lambda: clients[2].compare_set("n", "", "1"),
        lambda: connect(address, deadline_s=DEADLINE_S),
    )
    with ThreadPoolExecutor(len(calls)) as pool:
        for lasted_s in pool.map(until_error, calls):
            assert DEADLINE_S / 2 < lasted_s < DEADLINE_S + 1.0
    clients[0].close()
    clients[1].close()


def until_error(call):
    start_s = time.monotonic()
    with pytest.raises(RuntimeError):
        call()
    return time.monotonic() - start_s


@pytest.mark.slow  # a process with torch
def test_a_call_over_its_deadline_loses_its_own_connection_only(stopped):
    address, stop = stopped
    before = connections()
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = socket.create_connection(server.getsockname(), timeout=5)
        there, _ = server.accept()
    client = connect(address, deadline_s=0.2)
    assert len(connections() - before) == 3
    stop()
    with other, there:
        assert until_error(lambda: client.add("n", 1)) < 0.2 + 1.0
        other.sendall(b"x")
        assert there.recv(1) == b"x"
    client.close()


def test_a_clone_is_another_client_of_the_same_store():
    """It waits no longer than its original, and is closed with it."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    given_up = threading.Event()
    before, threads = connections(), watchers()
    client = connect(f"127.0.0.1:{server.port}", given_up.is_set)
    clone = client.clone()
    assert len(connections() - before) == 4  # and the server's ends, which are in this process
    client.set("a", "1")
    assert clone.get("a") == b"1"
    given_up.set()
    with pytest.raises(RendezvousFailed, match="given up"):
        clone.get("never")
    assert watchers() == threads + 2
    client.close()
    until_s = time.monotonic() + 5
    while watchers() > threads and time.monotonic() < until_s:
        time.sleep(0.001)
    assert watchers() == threads


def watchers():
    """Number of threads that watch over the deadline of a client."""
    return sum(thread.name == "store-deadline" for thread in threading.enumerate())


def test_who_was_cancelled_gives_up_a_store_that_is_dead_within_one_try():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    began_s = time.monotonic()
    with pytest.raises(RuntimeError):
        connect(f"127.0.0.1:{port}", lambda: True, deadline_s=60.0)
    assert time.monotonic() - began_s < 8 * TRY_S
