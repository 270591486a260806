"""Writes files in the background until they are on the disk, however long the disk refuses.

The rank goes on hearing directives meanwhile, and keeps its state.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from worker.checkpoint.files import File

_log = logging.getLogger(__name__)
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0  # so that it is done soon after the disk can be written again


class Saving:
    """Files on their way to a folder, one after the other.

    Attributes:
        error: why they cannot be written, one sentence; None while nothing is wrong.
        is_done: all of them are written and were read back.
    """

    def __init__(self, folder: str, files: Sequence[File]) -> None:
        """Begin."""
        self.error: str | None = None
        self.is_done = False
        self._folder, self._files = Path(folder), list(files)
        self._cancelled = threading.Event()
        threading.Thread(target=self._save, name="saving", daemon=True).start()

    def cancel(self) -> None:
        """Give it up; a file that is being written does not take its name any more."""
        self._cancelled.set()

    def _save(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._files and not self._cancelled.is_set():
            try:
                self._files[0].write(self._folder, lambda: not self._cancelled.is_set())
            except Exception as error:  # whatever it is, the state is kept and it is tried again
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                self.error = (
                    f"{reason.lower()}: {str(self._folder / self._files[0].name)!r}; "
                    "the weights are kept in memory, and the rank tries again"
                )
                _log.warning("%s", self.error)
                self._cancelled.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self.error = None
                self._files.pop(0)
        self.is_done = not self._cancelled.is_set()
