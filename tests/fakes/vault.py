"""A vault in memory that fails where a test says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from worker.checkpoint.vaults.vault import Facts, VaultFailed, check_name, whole


class MemoryVault:
    """Objects in a dictionary; `fails` is asked before each call and each chunk.

    Attributes:
        fails: takes the operation and the name; an error that it raises is the vault's.
        objects: {name: content} of whole objects.
    """

    def __init__(self, fails: Callable[[str, str], None] = lambda *_: None) -> None:
        self.fails = fails
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, name: str, chunks: Iterable[bytes | memoryview], num_bytes: int) -> None:
        self._begin("put", name)
        found = []
        for chunk in whole(chunks, num_bytes, name):
            self.fails("chunk", name)
            found.append(bytes(chunk))
        self.fails("named", name)
        with self._lock:
            self.objects[name] = b"".join(found)

    def commit(self, name: str, content: bytes) -> bool:
        self._begin("commit", name)
        with self._lock:
            return self.objects.setdefault(name, content) is content

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        self._begin("read", name)
        if name not in self.objects:
            raise VaultFailed(f"{name} is not there", "missing")
        found = self.objects[name][start:stop]
        if stop is not None and len(found) < stop - start:
            raise VaultFailed(f"{name} ends before byte {stop}", "cut")
        return found

    def names(self, prefix: str = "") -> tuple[str, ...]:
        self.fails("names", prefix)
        with self._lock:
            return tuple(sorted(name for name in self.objects if name.startswith(prefix)))

    def facts(self, prefix: str = "") -> dict[str, Facts]:
        return {name: Facts(len(self.objects[name]), time.time()) for name in self.names(prefix)}

    def remove(self, name: str) -> None:
        self._begin("remove", name)
        self.objects.pop(name, None)

    def tidy(self, older_than_s: float) -> None:
        self.fails("tidy", "")  # a write that breaks off leaves nothing in memory

    def _begin(self, operation: str, name: str) -> None:
        check_name(name)
        self.fails(operation, name)
