"""worker/control/store.py: one store, on one address, for as long as the agent wants it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import pytest
from torch.distributed import DistNetworkError

from worker.control.store import main
from worker.control.store_client import connect


def is_there(host):
    """Whether this machine has the loopback address."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


class Served:
    """A store that serves in a thread, as it does in its process."""

    def __init__(self, host):
        self.agent, child = socket.socketpair()
        self.thread = threading.Thread(target=self._serve, args=(child, host), daemon=True)
        self.thread.start()
        with self.agent.makefile("rb") as lines:
            self.said = json.loads(next(lines))

    @staticmethod
    def _serve(child, host):
        with child, contextlib.suppress(SystemExit):
            main(child, host)

    def end(self):
        self.agent.close()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture(
    params=[
        "127.0.0.1",
        pytest.param(
            "::1", marks=pytest.mark.skipif(not is_there("::1"), reason="no IPv6 on this machine")
        ),
    ]
)
def served(request):
    store = Served(request.param)
    yield store
    store.end()


def test_clients_meet_at_the_address_that_it_says(served):
    assert served.said["type"] == "store"
    first, second = (connect(served.said["address"]) for _ in range(2))
    first.set("epoch1/key", "value")
    assert second.get("epoch1/key") == b"value"
    del first
    assert second.add("epoch1/votes", 1) == 1


def test_it_listens_on_its_own_address_only():
    store = Served("127.0.0.1")
    port = int(store.said["address"].rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=10)
    store.end()


def test_it_ends_when_its_agent_closes_the_channel():
    store = Served("127.0.0.1")
    client = connect(store.said["address"])
    assert client.add("n", 1) == 1
    store.end()
    with pytest.raises(RuntimeError):
        client.add("n", 1)


@pytest.mark.slow  # torch tries for a second, whatever its time-out
def test_where_nothing_listens_a_client_gives_up_in_time():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(DistNetworkError):
            connect(f"127.0.0.1:{free.getsockname()[1]}", deadline_s=0.05)
