"""Ctrl-C while a plan is searched: the search ends, and the best plan so far is kept.

Invariant: before the search has begun, and when it is pressed again, Ctrl-C ends the program at
once, as it does everywhere else.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Interruption:
    """Whether the user has pressed Ctrl-C; the search asks by calling it."""

    is_wanted = False  # that the search ends
    _has_begun = False

    def __call__(self) -> bool:
        """Whether to end now; who asks has begun to search."""
        self._has_begun = True
        return self.is_wanted

    def note(self, *_: object) -> None:
        """Ctrl-C was pressed.

        Raises:
            KeyboardInterrupt: there is no plan to keep, or it was pressed before.
        """
        if self.is_wanted or not self._has_begun:
            raise KeyboardInterrupt
        self.is_wanted = True


@contextmanager
def interruption() -> Iterator[Interruption]:
    """Let Ctrl-C end a search instead of the program; to be used in the main thread."""
    asked = Interruption()
    before = signal.signal(signal.SIGINT, asked.note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
