"""worker/world/forming.py: what forms over gloo ends once its epoch is given up, on every wire."""

from __future__ import annotations

import functools
import socket
import threading
import time

import pytest
from torch.distributed import HashStore

from migration import gloo_transport
from migration.errors import TransferFailed
from migration.gloo_group import form_gloo
from tests.fakes.gloo_group import form_gloo as form_by_handles
from worker.control.activity import Activity
from worker.control.store_client import StoreClient
from worker.device.device import CPU
from worker.world import forming, gloo_wire
from worker.world.forming import ends_if_given_up
from worker.world.gloo_wire import GlooWire
from worker.world.group import Group
from worker.world.nccl_wire import NcclWire
from worker.world.payload import form_transport, nccl_transport, payload_of

FORM_S = 4.0  # of a member that only listens
AT_ONCE_S = 2.0
PATIENCE_S = 60.0
TRIES = 12  # by chance gloo makes either of two members connect


class Peer:
    """A member that meets, and whose address takes no connection: its host drops what comes."""

    def __init__(self, name):
        self.is_given_up, self.store = threading.Event(), HashStore()
        self.store.set(f"{name}/here1", "")
        self._name, self._listens = name, socket.create_server(("127.0.0.1", 0), backlog=0)
        self._waits = [socket.socket() for _ in range(3)]
        for waits in self._waits:  # until the kernel takes no more
            waits.setblocking(False)
            waits.connect_ex(self._listens.getsockname())
        threading.Thread(target=self._answer, daemon=True).start()

    def client(self):
        return StoreClient(self.store, self.is_given_up.is_set)

    def _answer(self):
        """The address of the other member, with the port of this one."""
        said = self.store.get(f"{self._name}/0/0")
        at = said.index(socket.inet_aton("127.0.0.1")) - 2
        port = self._listens.getsockname()[1].to_bytes(2, "big")
        self.store.set(f"{self._name}/0/1", said[:at] + port + said[at + 2 :])
        time.sleep(0.2)
        self.is_given_up.set()

    def close(self):
        for one in (self._listens, *self._waits):
            one.close()


def a_wire(store):
    return GlooWire.form(store, "x", 0, 2)


def transport_of_nccl(store):
    wire = NcclWire.over(form_by_handles)
    nccl_transport(store, "x", 0, 2, form_wire=wire, device=CPU, patience_s=PATIENCE_S)


def transport_of_gloo(store):
    form_transport(payload_of(CPU), CPU, store, "x", 0, 2, patience_s=PATIENCE_S)


def seconds_to_end(begin):
    """How long a member tries to connect once its epoch is given up."""
    peer, began_s = Peer("x"), time.monotonic()
    try:
        with pytest.raises((RuntimeError, TransferFailed)):
            begin(peer.client())
        return time.monotonic() - began_s
    finally:
        peer.close()


@pytest.mark.slow
@pytest.mark.parametrize("begin", [a_wire, transport_of_nccl, transport_of_gloo])
def test_a_member_that_connects_ends_at_once_and_one_that_listens_at_its_deadline(
    begin, monkeypatch
):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    for module in (gloo_wire, gloo_transport):
        monkeypatch.setattr(module, "form_gloo", functools.partial(form_gloo, form_s=FORM_S))
    took_s = []
    while min(took_s, default=FORM_S) > AT_ONCE_S and len(took_s) < TRIES:
        took_s.append(seconds_to_end(begin))
    assert min(took_s) < AT_ONCE_S
    assert max(took_s) < 2 * FORM_S


@pytest.mark.slow
def test_a_first_sum_that_a_peer_never_joins_ends_at_once():
    store, is_given_up = HashStore(), threading.Event()
    silent = []
    peer = threading.Thread(
        target=lambda: silent.append(GlooWire.form(store, "x", 1, 2)), daemon=True
    )
    peer.start()
    client = StoreClient(store, is_given_up.is_set)
    after = threading.Timer(0.2, is_given_up.set)
    after.start()
    began_s = time.monotonic()
    with pytest.raises(RuntimeError):
        Group.form(client, "x", (0, 1), 0, Activity())
    assert time.monotonic() - began_s < AT_ONCE_S
    assert is_given_up.is_set()
    peer.join(PATIENCE_S)
    assert len(silent) == 1


def test_nothing_is_ended_while_nobody_gives_the_epoch_up():
    ended = []
    with ends_if_given_up(StoreClient(HashStore()), lambda: ended.append(1)):
        assert "watch-forming" in names()
    assert ended == []
    assert "watch-forming" not in names()


def test_what_does_not_end_is_left_behind_and_cuts_nothing_of_the_next_epoch(monkeypatch):
    monkeypatch.setattr(forming, "LIMIT_S", 0.1)
    ended = []
    with ends_if_given_up(StoreClient(HashStore(), lambda: True), lambda: ended.append(1)):
        deadline_s = time.monotonic() + PATIENCE_S
        while "watch-forming" in names() and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert "watch-forming" not in names()
    assert ended


def names():
    return {thread.name for thread in threading.enumerate()}
