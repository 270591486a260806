"""Whether the world of an epoch is broken: a flag that is set before anything of it ends.

Once a world is broken, a receive buffer may hold numbers that look right and never were sent: an
aborted kernel leaves what it finds.  So whoever reads a number asks this flag afterwards.
Source: torchft, whose process group sets its error before it aborts.
"""

from __future__ import annotations


class Broken:
    """The flag of one epoch's world; any thread sets it, and it stays set."""

    def __init__(self) -> None:
        self._why: str | None = None

    def set(self, why: str) -> None:
        """Say why; the first reason stays."""
        if self._why is None:
            self._why = why

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
