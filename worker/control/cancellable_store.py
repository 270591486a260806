"""A client of a store whose waits can be given up.

Torch forms a group by waiting at the store for what its peers write there, in C++ and for the whole
time-out, though a peer may have died.  Behind this store the wait is ours: a rank that is told to
give the epoch up stops within `POLL_S`, and halts with its state.
Source: torch lets a Python class stand in for its stores (`PythonStore`).
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

from torch._C._distributed_c10d import Store

from worker.errors import RendezvousFailed

POLL_S = 0.0005


class CancellableStore(Store):
    """Passes every call on to `store`, and waits by looking again and again.

    Keep it for as long as a group that formed through it: torch does not.

    Args:
        store: the real one.
        is_cancelled: asked while waiting.
        timeout_s: to wait at most.
    """

    def __init__(self, store: Store, is_cancelled: Callable[[], bool], timeout_s: float) -> None:
        super().__init__()
        self._store, self._is_cancelled, self._timeout_s = store, is_cancelled, timeout_s

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        """Return once all keys are there.

        Raises:
            RendezvousFailed: the wait was given up, or took too long.
            RuntimeError: the store is gone (torch's DistError).
        """
        allowed_s = self._timeout_s if timeout is None else timeout.total_seconds()
        deadline = time.monotonic() + allowed_s
        while not self._store.check(keys):
            if self._is_cancelled():
                raise RendezvousFailed("the epoch was given up while its ranks met")
            if time.monotonic() > deadline:
                raise RendezvousFailed(f"a peer did not come within {allowed_s:g} s ({keys[0]})")
            time.sleep(POLL_S)

    def get(self, key: str) -> bytes:
        """The value, once it is there; raises as `wait` does."""
        self.wait([key])
        return self._store.get(key)

    def set(self, key: str, value: str) -> None:
        """See torch's Store."""
        self._store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """See torch's Store."""
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """See torch's Store."""
        return self._store.check(keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """See torch's Store."""
        return self._store.compare_set(key, expected, desired)
