"""worker/control/store.py: one store, on one address, for those alone who know its secret."""

from __future__ import annotations

import contextlib
import datetime
import secrets
import socket
import threading
import time

import pytest
from torch.distributed import TCPStore

from tests.unit.worker.control.stores import KEY, Served
from worker.control import secret
from worker.control.secret import hello, store_key
from worker.control.store import HELLO_S, MAX_UNAUTHENTICATED
from worker.control.store_client import connect
from worker.errors import StoreGone
from worker.rank.vote import Vote


def is_there(host):
    """Whether this machine has the loopback address."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


@pytest.fixture(
    params=[
        "127.0.0.1",
        pytest.param(
            "::1", marks=pytest.mark.skipif(not is_there("::1"), reason="no IPv6 on this machine")
        ),
    ]
)
def everywhere(request):
    store = Served(request.param)
    yield store
    store.end()


@pytest.fixture
def served():
    store = Served()
    yield store
    store.end()


def test_clients_meet_at_the_address_that_it_says(everywhere):
    first, second = everywhere.client(), everywhere.client()
    first.set("epoch1/key", "value")
    assert second.get("epoch1/key") == b"value"
    first.close()
    assert second.add("epoch1/votes", 1) == 1


def test_it_listens_on_its_own_address_only(served):
    port = int(served.address.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=10)


def test_it_ends_when_its_agent_closes_the_channel():
    store = Served()
    client = store.client()
    assert client.add("n", 1) == 1
    store.end()
    with pytest.raises(RuntimeError, match="is gone"):
        client.add("n", 1)


def test_where_nothing_listens_a_client_gives_up_in_time():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(StoreGone):
            connect(f"127.0.0.1:{free.getsockname()[1]}", KEY, 1, deadline_s=0.05)


def test_who_knows_another_jobs_secret_or_none_is_let_in_nowhere(served):
    vote = Vote(served.client(7), 7, 2)
    for key in (store_key("another token"), secrets.token_hex(32)):
        with pytest.raises(StoreGone):
            connect(served.address, key, 7, deadline_s=0.2)
    assert vote.outcome() is None


def forged_by_torch(address):
    """What brought `commit` about before the store had a lock: a plain client of torch's."""
    host, _, port = address.rpartition(":")
    limit = datetime.timedelta(seconds=1)
    store = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
    store.set("epoch7/outcome", "commit")


def forged_by_lines(address):
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        stranger.sendall(b'["set", "epoch7/outcome", "commit"]\n' * 100)
        while stranger.recv(1 << 10):  # a challenge, and then the end
            pass


@pytest.mark.parametrize("forge", [forged_by_torch, forged_by_lines])
def test_a_forged_commit_is_not_believed(served, forge):
    vote = Vote(served.client(7), 7, 2)
    with contextlib.suppress(OSError, RuntimeError):  # however it is told to go
        forge(served.address)
    assert vote.outcome() is None
    for _ in range(2):
        vote.cast()
    assert vote.outcome() == "commit"


def test_a_proof_that_was_heard_opens_nothing_the_second_time(served):
    first, challenge = served.raw()
    said = hello(KEY, 7, challenge, secret.new_nonce())
    first.sendall(said)
    assert len(first.recv(1 << 10)) == secret.PROOF_BYTES
    second, _ = served.raw()
    second.sendall(said)
    with first, second:
        assert until_closed(second) == b""


def test_a_proof_of_one_epoch_reaches_nothing_of_another(served):
    served.client(7).set("epoch7/outcome", "commit")
    assert not served.client(8).check(["epoch7/outcome"])


def test_a_false_store_is_not_believed():
    """A stranger that has the address of a store which is gone, and says yes to everything."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def agree():
            there, _ = server.accept()
            with there:
                there.sendall(secrets.token_bytes(secret.NONCE_BYTES))
                there.recv(secret.HELLO_BYTES)
                there.sendall(secrets.token_bytes(secret.PROOF_BYTES) + b'"commit"\n' * 10)
                until_closed(there)

        threading.Thread(target=agree, daemon=True).start()
        host, port = server.getsockname()
        with pytest.raises(StoreGone, match="it is no store of this job"):
            connect(f"{host}:{port}", KEY, 7, lambda: True)


def test_strangers_neither_fill_it_nor_keep_others_out(served):
    vote = Vote(served.client(7), 7, 1)
    strangers = [served.raw()[0] for _ in range(2 * MAX_UNAUTHENTICATED)]
    began_s = time.monotonic()
    vote.cast()
    assert served.client(7).get("epoch7/outcome") == b"commit"
    assert time.monotonic() - began_s < HELLO_S / 2, "nobody waits until strangers are cut off"
    for stranger in strangers:
        with stranger:
            assert sent_until_cut_off(stranger) < 1 << 24


def sent_until_cut_off(stranger):
    """How many bytes a stranger gets rid of."""
    junk, sent = b"x" * (1 << 20), 0
    with contextlib.suppress(OSError):
        while sent < 1 << 28:
            sent += stranger.send(junk)
    return sent


@pytest.mark.parametrize(
    "line", [b"{}", b"[]", b"nothing", b'["steal", "a"]', b'["get"]', b"[" * 9999]
)
def test_who_breaks_the_rules_is_cut_off_and_others_are_not(served, line):
    client = served.client(7)
    raw, challenge = served.raw()
    with raw:
        raw.sendall(hello(KEY, 7, challenge, secret.new_nonce()))
        assert len(raw.recv(1 << 10)) == secret.PROOF_BYTES
        raw.sendall(line + b"\n")
        assert until_closed(raw) == b""
    assert client.add("n", 1) == 1


def until_closed(connection):
    """What the other end says before it closes."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 10):
            said += data
    return said
