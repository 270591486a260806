"""What a rank is doing, written by the threads that do it and read by the one that tells it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Activity:
    """One rank's activity; its heartbeats carry it.

    Attributes:
        part: of the rank's life, as `worker.contract.RankReport.part` says it.
        progress: grows with each micro-batch, message and part that is done.
    """

    def __init__(self) -> None:
        self.part = "starting"
        self.progress = 0
        self._waiting: set[int | None] = set()  # threads that wait for peers

    @property
    def waiting(self) -> bool:
        """Whether peers are waited for, not this rank by them.

        While it trains, the main thread alone says so: another one that prepares the next epoch
        may wait for minutes, or be done, without a word about the step.
        """
        if self.part == "training":
            return threading.main_thread().ident in self._waiting
        return bool(self._waiting)

    def begin(self, part: str) -> None:
        """A part begins, which is progress."""
        self.part = part
        self.progress += 1

    def advance(self) -> None:
        """One more unit of work is done."""
        self.progress += 1

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Peers are waited for in this thread; that they came is progress."""
        me = threading.current_thread().ident
        self._waiting.add(me)
        try:
            yield
        finally:
            self._waiting.discard(me)
            self.progress += 1
