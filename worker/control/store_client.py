"""A client of an epoch's store, whose calls have a deadline and whose waits can be given up.

Source: torch lets a Python class stand in for its stores (`PythonStore`).
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable

from torch._C._distributed_c10d import Store

from worker.control.store_connection import StoreConnection
from worker.errors import RendezvousFailed, StoreGone

POLL_S = (0.0005, 0.01)  # first and longest pause of who waits for a key
DEADLINE_S = 10.0  # of one call
TRY_S = 2.5  # of one try to connect
RETRY_S = 0.05
# Of a wait for peers: who is lost is told by heartbeats, not by a clock here.  Ten years.
PATIENCE_S = 10 * 365 * 86_400.0


class StoreClient(Store):
    """Passes every call on to `store`.

    Keep it for as long as a group that formed through it: torch does not.

    Args:
        store: the real client: a connection, or one of torch's own stores.
        is_cancelled: asked while waiting for a key.
    """

    def __init__(
        self, store: Store | StoreConnection, is_cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__()
        self._store, self._is_cancelled = store, is_cancelled
        self._lock = threading.Lock()
        self._clones: list[StoreClient] = []

    @property
    def is_given_up(self) -> bool:
        """Whether the epoch of this store was given up, so that nothing more is to form."""
        return self._is_cancelled()

    def close(self) -> None:
        """No call follows, here or in a clone."""
        for client in (self, *self._clones):
            if isinstance(client._store, StoreConnection):
                client._store.close()

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        """Return once all keys are there.

        Raises:
            RendezvousFailed: the wait was given up, or took too long.
            StoreGone: the store does not answer.
        """
        allowed_s = PATIENCE_S if timeout is None else timeout.total_seconds()
        until_s, pause_s = time.monotonic() + allowed_s, POLL_S[0]
        while not self.check(keys):
            if self._is_cancelled():
                raise RendezvousFailed("the epoch was given up while its ranks met")
            if time.monotonic() > until_s:
                raise RendezvousFailed(f"a peer did not come within {allowed_s:g} s ({keys[0]})")
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, POLL_S[1])

    def get(self, key: str) -> bytes:
        """The value, once it is there; raises as `wait` does."""
        self.wait([key])
        with self._lock:
            return self._store.get(key)

    def set(self, key: str, value: str) -> None:
        """See torch's Store."""
        with self._lock:
            self._store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """See torch's Store."""
        with self._lock:
            return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """See torch's Store."""
        with self._lock:
            return self._store.check(keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """See torch's Store."""
        with self._lock:
            return self._store.compare_set(key, expected, desired)

    def clone(self) -> Store:
        """Another connection to the same store."""
        clone = StoreClient(self._store.clone(), self._is_cancelled)
        self._clones.append(clone)
        return clone


def connect(
    address: str,
    key: str,
    epoch: int,
    is_cancelled: Callable[[], bool] = lambda: False,
    deadline_s: float = DEADLINE_S,
) -> StoreClient:
    """A client of the store at `address`, host:port.

    Args:
        address: of the store.
        key: of the job's stores, see `secret.store_key`.
        epoch: whose ranks meet there.
        is_cancelled: see `StoreClient`.
        deadline_s: of one call, and of all tries to connect.

    Raises:
        StoreGone: no store of this job answers there in time.
    """
    until_s = time.monotonic() + deadline_s
    while True:
        try:
            connection = StoreConnection(address, key, epoch, deadline_s, min(TRY_S, deadline_s))
        except StoreGone:
            if is_cancelled() or time.monotonic() >= until_s:
                raise
            time.sleep(RETRY_S)
        else:
            return StoreClient(connection, is_cancelled)
