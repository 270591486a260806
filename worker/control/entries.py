"""Entries of a store for each epoch, with the answers that torch's stores give.

Source: torch.distributed's Store (set, get, check, add, compare_set).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

EPOCHS_KEPT = 8  # before the newest; no rank asks for the vote of one that old
MAX_BYTES = 256 << 20  # of all entries; addresses of thousands of ranks are a few MiB


class Entries:
    """All entries by epoch.

    Values are texts; each character is one byte, as JSON can say them.
    """

    def __init__(self) -> None:
        self._epochs: dict[int, dict[str, str]] = {}
        self._bytes = 0

    def answer(self, epoch: int, request: Any) -> Any:
        """The answer to a request, `[operation, argument, ...]`.

        Raises:
            ValueError: it is no request, or nothing more can be held.
        """
        operations: dict[str, Callable[..., Any]] = {
            "set": self._set,
            "get": self._get,
            "check": self._check,
            "add": self._add,
            "compare_set": self._compare_set,
        }
        held = self._epoch(epoch)
        try:
            name, *arguments = request
            operation = operations[name]
            return operation(held, *arguments)
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"no request of a store: {error}") from None

    def _epoch(self, epoch: int) -> dict[str, str]:
        """The entries of an epoch; those of long ago are forgotten when a new one begins."""
        if epoch not in self._epochs:
            self._epochs[epoch] = {}
            for old in [number for number in self._epochs if number < epoch - EPOCHS_KEPT]:
                gone = self._epochs.pop(old)
                self._bytes -= sum(len(key) + len(value) for key, value in gone.items())
        return self._epochs[epoch]

    def _set(self, held: dict[str, str], key: str, value: str) -> None:
        more = len(value) - len(held[key]) if key in held else len(key) + len(value)
        if self._bytes + more > MAX_BYTES:
            raise ValueError("the store is full")
        self._bytes += more
        held[key] = value

    def _get(self, held: dict[str, str], key: str) -> str | None:
        return held.get(key)

    def _check(self, held: dict[str, str], *keys: str) -> bool:
        return all(key in held for key in keys)

    def _add(self, held: dict[str, str], key: str, amount: int) -> int:
        total = int(held.get(key, "0")) + amount
        self._set(held, key, str(total))
        return total

    def _compare_set(self, held: dict[str, str], key: str, expected: str, desired: str) -> str:
        found = held.get(key)
        if found is None and expected:
            return expected
        if found in (None, expected):
            self._set(held, key, desired)
            return desired
        return str(found)
