"""Connections to the API server that are broken off where others would say goodbye.

A connection that is closed in order waits for the other side first, and the kernel goes on sending
what it still holds, even after the process has ended.  A request that was given up would be carried
out once the network is back, perhaps long after another operator has taken over.
Invariant: of a request that was given up nothing more is sent, and the server sees a reset, at
which it cancels what it has begun.
Source: socket(7), SO_LINGER; kube-apiserver (a request's context ends with its connection).
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Any

import aiohttp

_NO_LINGERING = struct.pack("ii", 1, 0)


class Connector(aiohttp.TCPConnector):
    """Makes such connections, over TLS or not."""

    def __init__(self, limit: int, ssl: ssl.SSLContext) -> None:
        super().__init__(limit=limit, ssl=ssl, socket_factory=_socket)

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        # The only place at which aiohttp ends the connection of a request that was cancelled.
        if should_close:
            protocol.abort()
        super()._release(key, protocol, should_close=should_close)


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    found = socket.socket(family, kind, protocol)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
    return found
