"""worker/control/connections.py: a wait in C ends at once when its connection is cut."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import pytest
import torch

from tests.unit.worker.ranks import run_ranks
from worker.control.activity import Activity
from worker.control.connections import connections, cut
from worker.world.group import Group


@contextmanager
def line():
    """A TCP connection of this process to itself: both ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname(), timeout=5)
        there, _ = server.accept()
    there.settimeout(5)
    with here, there:
        yield here, there


def test_connections_are_those_that_are_connected():
    before = connections()
    one, other = socket.socketpair()
    with one, other, socket.create_server(("127.0.0.1", 0)):
        assert connections() == before
        with line():
            assert len(connections() - before) == 2
    assert connections() == before


def test_only_the_named_ones_are_cut():
    before = connections()
    with line() as (here, there):
        named = connections() - before
        with line() as (other_here, other_there):
            assert cut(named) == 2
            assert there.recv(1) == b""
            with pytest.raises(OSError, match="Broken pipe"):
                here.sendall(b"x")
            other_here.sendall(b"x")
            assert other_there.recv(1) == b"x"


def test_to_cut_what_is_gone_is_no_error():
    before = connections()
    with line():
        gone = connections() - before
    assert cut(gone) == 0
    assert cut(frozenset()) == 0


AT_ONCE_S = 5.0  # a cut takes milliseconds; without one both wait for minutes


def claims(rank, store):
    """How long two waits in C last once all connections are cut; two ranks."""
    group = Group.form(store, "g", (0, 1), rank, Activity())
    if rank == 1:  # is silent, and learns of the cut by its own connection
        with pytest.raises(RuntimeError):
            group.recv(torch.zeros(1), 0)
        return None
    ended_s = {}

    def wait(name, call):
        try:
            call()
        except RuntimeError:
            ended_s[name] = time.monotonic()

    blocked = store.clone()
    threads = [
        threading.Thread(target=wait, args=arguments, daemon=True)
        for arguments in (
            ("collective", lambda: group.all_reduce_(torch.zeros(1))),
            ("store", lambda: blocked.get("never written")),
        )
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    agent, channel = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        waiting = sorted(ended_s)
        cut_s = time.monotonic()
        count = cut()
        for thread in threads:
            thread.join(20)
        agent.sendall(b"x")
        with socket.create_connection(server.getsockname(), timeout=5):
            server.accept()[0].close()
        return {
            "ended early": waiting,
            "count": count,
            "after": {name: at_s - cut_s for name, at_s in ended_s.items()},
            "channel": channel.recv(1).decode(),
        }


@pytest.mark.slow
def test_a_collective_and_a_call_of_a_store_end_at_once():
    """The process lives on: gloo's own listening socket is left alone, and so is any other."""
    found, _ = run_ranks("tests.unit.worker.control.test_connections:claims", 2)
    assert found["ended early"] == []
    assert found["count"] >= 3
    assert sorted(found["after"]) == ["collective", "store"]
    assert all(0 <= after_s < AT_ONCE_S for after_s in found["after"].values())
    assert found["channel"] == "x"
