"""The store process of a pod, at which the ranks of an epoch meet.

It is not part of a rank, for any rank may leave, and the store must outlive every world that forms
through it.  Its death leaves existing groups working; only new groups cannot form.
It answers those alone who know the secret of an epoch, and of that epoch alone: all pods of a
cluster may reach it, and what it holds decides what the ranks do.
It sends heartbeats as a rank does: one that is stopped would hold everybody up who meets there.
Source: docs/decisions/0015; torch's TCPStore, which has no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import OrderedDict

from worker.control import secret
from worker.control.channel import BEAT_S, Channel
from worker.control.entries import Entries
from worker.control.messages import Beat, StoreListens
from worker.http_limits import allow_open_files

HELLO_S = 5.0  # to prove that the secret is known
MAX_UNAUTHENTICATED = 64  # who have not, at a time; the oldest goes first
REQUEST_BYTES = 16 << 20
BACKLOG = 1024


class _Connections:
    """State that all connections share.

    Attributes:
        unauthenticated: those that have not proved anything yet, oldest first.
        open: all connections.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.entries = Entries()
        self.unauthenticated: OrderedDict[_Client, None] = OrderedDict()
        self.open: set[asyncio.Transport] = set()


class _Client(asyncio.Protocol):
    """One connection: a challenge, a proof, then a line of JSON for each request and answer."""

    def __init__(self, connections: _Connections) -> None:
        self._connections = connections
        self._challenge = secret.new_nonce()
        self._buffer = bytearray()
        self._epoch: int | None = None
        self._transport: asyncio.Transport | None = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Challenge a new client, and let no more than a few of them wait."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.open.add(transport)
        self._late = asyncio.get_running_loop().call_later(HELLO_S, transport.abort)
        unauthenticated = self._connections.unauthenticated
        unauthenticated[self] = None
        if len(unauthenticated) > MAX_UNAUTHENTICATED:
            oldest, _ = unauthenticated.popitem(last=False)
            assert oldest._transport is not None
            oldest._transport.abort()
        transport.write(self._challenge)

    def connection_lost(self, _: Exception | None) -> None:
        """Forget it."""
        assert self._transport is not None
        self._connections.open.discard(self._transport)
        self._known()

    def data_received(self, data: bytes) -> None:
        """Answer whole requests; who breaks the rules is cut off without a word."""
        assert self._transport is not None
        self._buffer += data
        if self._epoch is None and not self._admit():
            return
        try:
            while (end := self._buffer.find(b"\n")) >= 0:
                request = json.loads(self._buffer[:end])
                del self._buffer[: end + 1]
                answer = self._connections.entries.answer(self._epoch or 0, request)
                self._transport.write(json.dumps(answer).encode() + b"\n")
            if len(self._buffer) > REQUEST_BYTES:
                raise ValueError("a request is too long")
        except (ValueError, RecursionError):
            self._transport.abort()

    def _admit(self) -> bool:
        assert self._transport is not None
        if len(self._buffer) < secret.HELLO_BYTES:
            return False
        said = bytes(self._buffer[: secret.HELLO_BYTES])
        del self._buffer[: secret.HELLO_BYTES]
        found = secret.admitted(self._connections.key, self._challenge, said)
        if found is None:
            self._transport.abort()
            return False
        self._known()
        self._epoch, proof = found
        self._transport.write(proof)
        return True

    def _known(self) -> None:
        self._connections.unauthenticated.pop(self, None)
        if self._late is not None:
            self._late.cancel()


def main(connection: socket.socket, host: str, key: str) -> None:
    """Serve a store on `host` until the agent closes the channel.

    Args:
        connection: to the agent.
        host: address to listen on.
        key: of the job's stores, see `secret.store_key`.
    """
    allow_open_files()  # two connections for each rank
    asyncio.run(_serve(connection, host, key))


async def _serve(connection: socket.socket, host: str, key: str) -> None:
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    channel, connections = Channel(connection), _Connections(key)
    server = await loop.create_server(lambda: _Client(connections), host, 0, backlog=BACKLOG)
    port = server.sockets[0].getsockname()[1]
    loop.add_reader(connection, is_over.set)  # the agent says nothing to a store but its end
    channel.send(StoreListens(address=f"{host}:{port}"))
    while not is_over.is_set():
        channel.send(Beat(progress=0, part="store", waiting=True))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_over.wait(), BEAT_S)
    for transport in connections.open:
        transport.abort()
