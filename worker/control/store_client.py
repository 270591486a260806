"""A client of an epoch's store, whose calls have a deadline and whose waits can be given up.

Torch's client waits in C++: for a key as long as its time-out, and for a host that fell silent as
long as the kernel repeats its packets, a quarter of an hour.  Here a wait looks again and again,
and a call that takes too long loses its connection, which ends it.
Source: torch lets a Python class stand in for its stores (`PythonStore`).
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch._C._distributed_c10d import Store, TCPStore

from worker.control.connections import connections, cut
from worker.errors import RendezvousFailed

POLL_S = 0.0005
DEADLINE_S = 10.0  # of one call
TRY_S = 2.5  # of one try to connect
PATIENCE_S = 86_400.0  # of a wait for peers: who is lost is told by heartbeats, not by a clock here


class StoreClient(Store):
    """Passes every call on to `store`.

    Keep it for as long as a group that formed through it: torch does not.

    Args:
        store: the real client.
        is_cancelled: asked while waiting for a key.
        deadline_s: of one call.
        own_connections: that a call over its deadline loses.
    """

    def __init__(
        self,
        store: Store,
        is_cancelled: Callable[[], bool] = lambda: False,
        deadline_s: float = DEADLINE_S,
        own_connections: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()
        self._store, self._is_cancelled, self._deadline_s = store, is_cancelled, deadline_s
        self._connections = own_connections
        self._lock = threading.Lock()
        self._began_s: float | None = None
        self._closed = threading.Event()
        self._clones: list[StoreClient] = []
        threading.Thread(target=self._watch, name="store-deadline", daemon=True).start()

    def close(self) -> None:
        """No call follows, here or in a clone."""
        self._closed.set()
        for clone in self._clones:
            clone.close()

    def _watch(self) -> None:
        while not self._closed.wait(self._deadline_s / 10):
            began_s = self._began_s
            if began_s is not None and time.monotonic() - began_s > self._deadline_s:
                cut(self._connections)

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        with self._lock:
            self._began_s = time.monotonic()
            try:
                yield
            finally:
                self._began_s = None

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        """Return once all keys are there.

        Raises:
            RendezvousFailed: the wait was given up, or took too long.
            RuntimeError: the store is gone (torch's DistError).
        """
        allowed_s = PATIENCE_S if timeout is None else timeout.total_seconds()
        until_s = time.monotonic() + allowed_s
        while not self.check(keys):
            if self._is_cancelled():
                raise RendezvousFailed("the epoch was given up while its ranks met")
            if time.monotonic() > until_s:
                raise RendezvousFailed(f"a peer did not come within {allowed_s:g} s ({keys[0]})")
            time.sleep(POLL_S)

    def get(self, key: str) -> bytes:
        """The value, once it is there; raises as `wait` does."""
        self.wait([key])
        with self._in_time():
            return self._store.get(key)

    def set(self, key: str, value: str) -> None:
        """See torch's Store."""
        with self._in_time():
            self._store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """See torch's Store."""
        with self._in_time():
            return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """See torch's Store."""
        with self._in_time():
            return self._store.check(keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """See torch's Store."""
        with self._in_time():
            return self._store.compare_set(key, expected, desired)

    def clone(self) -> Store:
        """Another connection to the same store."""
        store, own = _connected(self._store.clone, self._deadline_s)
        clone = StoreClient(store, self._is_cancelled, self._deadline_s, own)
        self._clones.append(clone)
        return clone


def connect(
    address: str,
    is_cancelled: Callable[[], bool] = lambda: False,
    deadline_s: float = DEADLINE_S,
) -> StoreClient:
    """A client of the store at `address`, host:port; arguments as those of `StoreClient`.

    Raises:
        torch.distributed.DistNetworkError: nothing answers there in time.
    """
    host, _, port = address.rpartition(":")
    try_s = min(TRY_S, deadline_s)

    def client() -> Store:
        limit = datetime.timedelta(seconds=try_s)
        store = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
        store.set_timeout(datetime.timedelta(seconds=deadline_s))
        return store

    until_s = time.monotonic() + deadline_s
    while True:  # torch itself tries for as long as it may, whatever was cancelled meanwhile
        try:
            store, own = _connected(client, try_s)
        except RuntimeError:
            if is_cancelled() or time.monotonic() >= until_s:
                raise
        else:
            return StoreClient(store, is_cancelled, deadline_s, own)


def _connected(client: Callable[[], Store], deadline_s: float) -> tuple[Store, frozenset[int]]:
    """A client that is made in time, and its connections.

    A store that is stopped takes a connection and never answers it.
    """
    before = connections()
    giving_up = threading.Timer(deadline_s, lambda: cut(connections() - before))
    giving_up.start()
    try:
        return client(), connections() - before
    finally:
        giving_up.cancel()
