"""A vault: where checkpoints are stored, as the operations that a save and a load need.

Invariants: an object is seen whole or not at all; `commit` creates an object once and never
replaces it, whoever races.
Source: design of checkpoints; conditional creation as in S3 (`If-None-Match: *`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, Protocol

from worker.errors import StoreFailed

Why = Literal[
    "credentials",
    "cut",
    "folder",
    "full",
    "missing",
    "name",
    "other",
    "refused",
    "scheme",
    "unreachable",
]
BROKEN_OFF_S = 86_400.0  # no write takes a day
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


class VaultFailed(StoreFailed):
    """An operation of a vault failed; `code` is a `Why`."""

    def __init__(self, sentence: str, why: Why) -> None:
        super().__init__(sentence, code=why)


class Facts(NamedTuple):
    """Size and time of an object.

    Attributes:
        num_bytes: it has.
        saved_at_s: when it was stored, in Unix time.
    """

    num_bytes: int
    saved_at_s: float


class Vault(Protocol):
    """Objects by name; a name is a path of plain words, and none of them begins with a dot.

    Every operation raises VaultFailed where the store fails, or the name has another form.
    """

    def put(self, name: str, chunks: Iterable[bytes | memoryview], num_bytes: int) -> None:
        """Store an object of that size, in place of an older one.

        It is seen when all of it is on disk.  Chunks of another size in all are `cut`.
        """

    def commit(self, name: str, content: bytes) -> bool:
        """Create an object unless it is there; False: it is there, and stays as it is."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes `[start, stop)` of an object, up to its end by default.

        An object that is not there is `missing`, one that ends before `stop` is `cut`.
        """

    def names(self, prefix: str = "") -> tuple[str, ...]:
        """Names of all whole objects that begin with the prefix, in order."""

    def facts(self, prefix: str = "") -> Mapping[str, Facts]:
        """{name: facts} of the objects that `names` lists; none of them is read."""

    def remove(self, name: str) -> None:
        """Remove an object; nothing happens if it is not there."""

    def tidy(self, older_than_s: float) -> None:
        """Remove what broken writes left, if it is older or its writer is known to be gone.

        No object is touched.
        """


def check_name(name: str) -> None:
    """Refuse a name that a vault does not take."""
    if not NAME.fullmatch(name):
        raise VaultFailed(f"an object has the name {name!r}; a name is a path of words", "name")


def whole(
    chunks: Iterable[bytes | memoryview], num_bytes: int, name: str
) -> Iterator[bytes | memoryview]:
    """The chunks; at their end refuse another size than was announced."""
    found = 0
    for chunk in chunks:
        found += len(chunk)
        yield chunk
    if found != num_bytes:
        raise VaultFailed(f"{name} has {found} of {num_bytes} bytes", "cut")


def parts_of(chunks: Iterable[bytes | memoryview], part_bytes: int) -> Iterator[bytearray]:
    """The chunks as parts of that size; the last, a shorter one, comes when no chunk is left."""
    part = bytearray()
    for chunk in chunks:
        rest = memoryview(chunk)
        while len(rest):
            if len(part) == part_bytes:
                yield part
                part = bytearray()
            taken = rest[: part_bytes - len(part)]
            part += taken
            rest = rest[len(taken) :]
    yield part
