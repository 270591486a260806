"""Whether the world of an epoch is broken: a flag that is set before anything of it ends.

Once a world is broken, a receive buffer may hold numbers that look right and never were sent: an
aborted kernel leaves what it finds.  So whoever reads a number asks this flag afterwards.
Source: torchft, whose process group sets its error before it aborts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Flag(Protocol):
    """What a wait asks of a world."""

    @property
    def is_set(self) -> bool:
        """Whether the world is broken; asked again and again while a device is awaited."""

    def check(self) -> None:
        """Go on only in a world that stands; ConnectionError."""


class Broken:
    """The flag of one epoch's world; any thread sets it, and it stays set."""

    def __init__(self) -> None:
        self._why: str | None = None

    def set(self, why: str) -> None:
        """Say why; the first reason stays."""
        if self._why is None:
            self._why = why

    @property
    def why(self) -> str | None:
        """The reason; None: the world stands."""
        return self._why

    @property
    def is_set(self) -> bool:
        """Whether the world is broken."""
        return self._why is not None

    def check(self) -> None:
        """Go on only in a world that stands.

        Raises:
            ConnectionError: it is broken.
        """
        if self._why is not None:
            raise ConnectionError(self._why)


class Patience:
    """The flag of a world during one wait: who waits too long breaks the world."""

    def __init__(self, broken: Broken, limit_s: float, end: Callable[[], None]) -> None:
        """`end` breaks the world, as none of its ranks may wait longer than `limit_s`."""
        self._broken, self._end = broken, end
        self._until_s = time.monotonic() + limit_s

    @property
    def is_set(self) -> bool:
        """Whether the world is broken, by now."""
        if not self._broken.is_set and time.monotonic() > self._until_s:
            self._end()
        return self._broken.is_set

    def check(self) -> None:
        """See `Broken.check`."""
        self._broken.check()
