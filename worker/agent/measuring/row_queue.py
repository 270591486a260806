"""Rows on their way to a disk: a thread writes them, and nobody waits for it.

Invariants: a disk that refuses is tried again, ever less often; the rows that wait meanwhile are
bounded, and those beyond are dropped and counted.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from planner.pauses import doubled_s

LOG = logging.getLogger(__name__)
Row = TypeVar("Row", contravariant=True)
ROWS_MOST = 10_000  # that wait: about 20 MB, and an hour of steps of a third of a second
FIRST_PAUSE_S = 1.0  # before a disk that has refused is tried again
LONGEST_PAUSE_S = 60.0


class Writer(Protocol[Row]):
    """Where rows go."""

    def add(self, row: Row) -> None:
        """Write one row, all of it or nothing."""

    def close(self) -> None:
        """Write what is left."""


class RowQueue(Generic[Row]):
    """Rows on their way to one writer, which is opened and used in a thread of its own."""

    def __init__(
        self,
        what: str,
        open_writer: Callable[[], Writer[Row]],
        *,
        most: int = ROWS_MOST,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """Write soon what is added.

        Args:
            what: the rows, for the log.
            open_writer: called anew after each error.
            most: rows that may wait.
            first_pause_s: before the first further try.
        """
        self._what, self._open = what, open_writer
        self._most, self._first_pause_s = most, first_pause_s
        self._rows: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self._added = self._written = self._refusals = 0
        self._closing = threading.Event()
        # No thread that is joined at the end: it may hang with its disk.
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)
        self._thread.start()

    def add(self, row: Row) -> None:
        """Write a row soon, or drop it if too many wait."""
        self._added += 1
        if self._rows.qsize() < self._most:
            self._rows.put(row)

    def close(self, patience_s: float) -> None:
        """Wait while rows are written, then say how many are lost."""
        self._closing.set()
        self._rows.put(None)
        before = -1
        while self._thread.is_alive() and self._written > before:
            before = self._written
            self._thread.join(patience_s)
        lost = self._added - self._written
        if lost:
            LOG.warning("%d of %d %s were not written", lost, self._added, self._what)

    def _run(self) -> None:
        row: Row | None = None
        while True:
            try:
                with contextlib.closing(self._open()) as writer:
                    row = row or self._rows.get()
                    while row is not None:
                        writer.add(row)
                        self._note_written()
                        row = self._rows.get()
                return
            except OSError as error:
                if self._closing.is_set():
                    return
                self._note_refused(error)
            self._closing.wait(doubled_s(self._first_pause_s, self._refusals, LONGEST_PAUSE_S))

    def _note_written(self) -> None:
        self._written += 1
        if self._refusals:
            LOG.warning("%s are written again", self._what)
            self._refusals = 0

    def _note_refused(self, error: OSError) -> None:
        self._refusals += 1
        if self._refusals == 1:
            LOG.warning("%s cannot be written, and are tried again: %s", self._what, error)
