"""One process's view of a vault, in which one call fails, lies, stalls or ends the process.

Without a fault it is the vault below it, so it passes that seam's contract suite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from worker.checkpoint.vaults.vault import Facts, Vault, VaultFailed

Kind = Literal["full", "unanswered", "dies", "dies after", "stalls", "lies"]
Operation = Literal["put", "commit", "read", "names", "remove"]


class Fault(NamedTuple):
    """What goes wrong in one call.

    Attributes:
        kind: `full`, `dies` and `stalls` come before a call, or amid the bytes of a put;
            `unanswered` and `dies after` once it is done.  A read that `lies` gives another bit,
            names that do give an older listing.
        operation: that it meets.
        number: of the call among those of this operation, from 0.
        share: of a put's bytes that come through before; of a read's bits, where the other one is.
    """

    kind: Kind
    operation: Operation
    number: int
    share: float = 0.0


class Died(Exception):
    """The process of this view is dead; no call of it reaches the store any more."""


class FaultyVault:
    """A view of a vault.

    Attributes:
        fired: whether the fault has met its call.
        stall: what a fault that stalls calls; the process goes on when that returns.
    """

    def __init__(
        self, inner: Vault, fault: Fault | None = None, stall: Callable[[], None] = lambda: None
    ) -> None:
        self.fired, self.stall = False, stall
        self._inner, self._fault = inner, fault
        self._calls: Counter[Operation] = Counter()
        self._is_dead = False
        self._older_names = inner.names() if fault is not None else ()

    def put(self, name: str, chunks: Iterable[bytes | memoryview], num_bytes: int) -> None:
        fault = self._next("put")
        self._inner.put(name, self._broken(chunks, num_bytes, fault, name), num_bytes)
        self._after(fault, name)

    def commit(self, name: str, content: bytes) -> bool:
        fault = self._next("commit")
        self._before(fault, name)
        found = self._inner.commit(name, content)
        self._after(fault, name)
        return found

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        fault = self._next("read")
        self._before(fault, name)
        found = self._inner.read(name, start, stop)
        self._after(fault, name)
        if fault is None or fault.kind != "lies" or not found:
            return found
        other, bit = bytearray(found), int(fault.share * (8 * len(found) - 1))
        other[bit // 8] ^= 1 << bit % 8
        return bytes(other)

    def names(self, prefix: str = "") -> tuple[str, ...]:
        fault = self._next("names")
        self._before(fault, prefix)
        found = self._inner.names(prefix)
        self._after(fault, prefix)
        if fault is None or fault.kind != "lies":
            return found
        return tuple(name for name in self._older_names if name.startswith(prefix))

    def facts(self, prefix: str = "") -> Mapping[str, Facts]:
        """A listing too: the fault of `names` meets it."""
        found = self.names(prefix)
        return {name: facts for name, facts in self._inner.facts(prefix).items() if name in found}

    def remove(self, name: str) -> None:
        fault = self._next("remove")
        self._before(fault, name)
        self._inner.remove(name)
        self._after(fault, name)

    def tidy(self, older_than_s: float) -> None:
        self._inner.tidy(older_than_s)

    def _next(self, operation: Operation) -> Fault | None:
        """The fault, if it is of the call that begins now."""
        if self._is_dead:
            raise Died
        number, fault = self._calls[operation], self._fault
        self._calls[operation] += 1
        if fault is None or (fault.operation, fault.number) != (operation, number):
            return None
        self.fired = True
        return fault

    def _broken(
        self, chunks: Iterable[bytes | memoryview], num_bytes: int, fault: Fault | None, name: str
    ) -> Iterator[bytes | memoryview]:
        """The chunks; amid them the fault of a put."""
        if fault is None:
            yield from chunks
            return
        left = round(fault.share * num_bytes)
        is_due = True
        for chunk in chunks:
            if is_due and len(chunk) > left:
                yield chunk[:left]
                self._before(fault, name)
                chunk, is_due = chunk[left:], False
            left -= len(chunk)
            yield chunk
        if is_due:
            self._before(fault, name)

    def _before(self, fault: Fault | None, name: str) -> None:
        match fault and fault.kind:
            case "full":
                raise VaultFailed(f"{name}: no room is left", "full")
            case "dies":
                self._is_dead = True
                raise Died
            case "stalls":
                self.stall()

    def _after(self, fault: Fault | None, name: str) -> None:
        match fault and fault.kind:
            case "unanswered":
                raise VaultFailed(f"{name}: the store did not answer", "other")
            case "dies after":
                self._is_dead = True
                raise Died
