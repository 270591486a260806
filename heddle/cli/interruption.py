"""Ctrl-C while a plan is searched: the search ends, and the best plan so far is kept.

Invariant: before the search has begun, and when it is pressed again, Ctrl-C ends the program at
once, as it does everywhere else.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Whether the user has pressed Ctrl-C; the search asks by calling it."""

    is_wanted = False  # that the search ends
    _has_begun = False

    def __call__(self) -> bool:
        """Whether to end now; who asks has begun to search."""
        self._has_begun = True
        return self.is_wanted

    def note(self, _: int, frame: FrameType | None) -> None:
        """Ctrl-C was pressed.

        Args:
            frame: that ran meanwhile.  While machine code is loaded nothing is raised, as what C
                calls cannot pass it on; the search then ends as soon as it asks.

        Raises:
            KeyboardInterrupt: there is no plan to keep, or it was pressed before.
        """
        is_at_once = self.is_wanted or not self._has_begun
        self.is_wanted = True
        if is_at_once and not _loads_machine_code(frame):
            raise KeyboardInterrupt


def _loads_machine_code(frame: FrameType | None) -> bool:
    """Whether this frame or a caller of it is numba's binding to LLVM, which calls back from C."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("llvmlite."):
            return True
        frame = frame.f_back
    return False


@contextmanager
def interruption() -> Iterator[Interruption]:
    """Let Ctrl-C end a search instead of the program; to be used in the main thread."""
    asked = Interruption()
    before = signal.signal(signal.SIGINT, asked.note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
