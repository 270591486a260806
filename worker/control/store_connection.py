"""One connection to an epoch's store: both ends prove that they know its secret, then requests.

Invariant: a call returns or raises within its deadline, however silent the store's host is; after
an error every further call raises, because an answer may still be on its way.
Source: worker/control/store.py.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import time
from typing import Any

from worker.control import secret
from worker.errors import NoPortToStore, StoreGone

READ_BYTES = 1 << 16


class StoreConnection:
    """The operations of a torch Store, over a socket; not for two threads at once.

    Args:
        address: host:port.
        key: of the job's stores.
        epoch: whose entries are read and written.
        deadline_s: of one call.
        try_s: to connect and to prove that the secret is known.

    Raises:
        StoreGone: no store of this job answers there in time.
    """

    def __init__(self, address: str, key: str, epoch: int, deadline_s: float, try_s: float) -> None:
        self._about = (address, key, epoch, deadline_s, try_s)
        self._address, self._deadline_s = address, deadline_s
        self._buffer = b""
        host, _, port = address.rpartition(":")
        until_s = time.monotonic() + try_s
        try:
            self._socket = socket.create_connection((host, int(port)), timeout=try_s)
        except OSError as error:
            is_ours = error.errno in (errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE)
            raise (NoPortToStore if is_ours else StoreGone)(address, error) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge, nonce = self._exactly(secret.NONCE_BYTES, until_s), secret.new_nonce()
        self._send(secret.hello(key, epoch, challenge, nonce), until_s)
        proof = self._exactly(secret.PROOF_BYTES, until_s)
        if not secret.is_store(key, epoch, challenge, nonce, proof):
            self.close()
            raise StoreGone(address, "it is no store of this job")

    def close(self) -> None:
        """End it; a call in another thread ends with an error."""
        with contextlib.suppress(OSError):  # it was closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def clone(self) -> StoreConnection:
        """Another connection to the same store."""
        return StoreConnection(*self._about)

    def get(self, key: str) -> bytes:
        """The value of a key that is there."""
        return _to_bytes(self._call("get", key) or "")

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._call("set", key, _to_text(value))

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._call("check", *keys))

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 at first; the sum."""
        return int(self._call("add", key, amount))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write `desired` over `expected`, "" for nothing; what is there then."""
        return _to_bytes(self._call("compare_set", key, _to_text(expected), _to_text(desired)))

    def _call(self, *request: Any) -> Any:
        until_s = time.monotonic() + self._deadline_s
        self._send(json.dumps(request).encode() + b"\n", until_s)
        while b"\n" not in self._buffer:
            self._buffer += self._some(until_s)
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def _exactly(self, count: int, until_s: float) -> bytes:
        while len(self._buffer) < count:
            self._buffer += self._some(until_s)
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    def _send(self, data: bytes, until_s: float) -> None:
        try:
            self._socket.settimeout(max(0.001, until_s - time.monotonic()))
            self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise StoreGone(self._address, error) from None

    def _some(self, until_s: float) -> bytes:
        try:
            self._socket.settimeout(max(0.001, until_s - time.monotonic()))
            data = self._socket.recv(READ_BYTES)
        except OSError as error:
            self.close()
            raise StoreGone(self._address, error) from None
        if not data:
            self.close()
            raise StoreGone(self._address, "it closed the connection")
        return data


def _to_text(value: str | bytes) -> str:
    """Bytes as a text that JSON can say, one character each; torch gives values as either."""
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _to_bytes(text: str) -> bytes:
    return text.encode("latin-1")
