"""Does what is left to do with the final weights, however long the disk refuses.

The rank goes on hearing directives meanwhile, and keeps its state.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from planner.pauses import doubled_s
from worker.weights.files import File

LOG = logging.getLogger(__name__)
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0  # so that it is done soon after the disk can be written again
LOOK_AGAIN_S = 0.1  # while others write what a step needs
CANCEL_S = 5.0  # a disk that does not answer is waited for no longer


class NotYet(Exception):
    """A step needs what other ranks are still writing; nothing is wrong."""


class Step(Protocol):
    """One thing to do.

    Attributes:
        path: of the file or folder that it writes.
    """

    @property
    def path(self) -> Path:
        """See above."""

    def run(self, go_on: Callable[[], bool]) -> None:
        """Do it, or all that is left of it; once `go_on` says no, end without a result.

        Raises:
            NotYet: see there.
            Exception: it is to be tried again.
        """


@dataclass(frozen=True, slots=True)
class Write:
    """Write a file and read it back."""

    folder: Path
    file: File

    @property
    def path(self) -> Path:
        """Of the file."""
        return self.folder / self.file.name

    def run(self, go_on: Callable[[], bool]) -> None:
        """See `Step`."""
        self.file.write(self.folder, go_on)


@dataclass(frozen=True, slots=True)
class Mark:
    """Say by an empty file that everything before it is done; nobody reads it back."""

    path: Path

    def run(self, go_on: Callable[[], bool]) -> None:
        """See `Step`."""
        if go_on():
            os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o644))


class Saving:
    """Steps on their way, one after the other.

    Attributes:
        error: why they cannot be done, one sentence; None while nothing is wrong.
        is_done: all of them are done.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        """Begin."""
        self.error: str | None = None
        self.is_done = False
        self._steps = list(steps)
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._save, name="saving", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Give it up; a file that is being written does not take its name any more.

        Afterwards nothing is written or removed, so that another rank may save in the same folder.
        """
        self._cancelled.set()
        self._thread.join(CANCEL_S)

    def again(self) -> Saving:
        """The rest of the work, begun anew after it was cancelled."""
        return Saving(self._steps)

    def _save(self) -> None:
        failures = 0
        while self._steps and not self._cancelled.is_set():
            try:
                self._steps[0].run(lambda: not self._cancelled.is_set())
            except NotYet:
                self.error = None
                self._cancelled.wait(LOOK_AGAIN_S)
            except Exception as error:  # whatever it is, the state is kept and it is tried again
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                self.error = (
                    f"{reason.lower()}: {str(self._steps[0].path)!r}; "
                    "the weights are kept in memory, and the rank tries again"
                )
                LOG.warning("%s", self.error)
                failures += 1
                self._cancelled.wait(doubled_s(FIRST_PAUSE_S, failures, LONGEST_PAUSE_S))
            else:
                self.error = None
                if not self._cancelled.is_set():  # else it may have ended without a result
                    self._steps.pop(0)
        self.is_done = not self._cancelled.is_set()
