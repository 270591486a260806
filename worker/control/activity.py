"""Activity of a rank, written by the threads that do it and read by the one that tells it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class LeftBehind(BaseException):
    """This thread was left behind while it waited for a peer, and may touch nothing any more.

    No `Exception`: whoever handles the errors of a wait is not to go on here.
    """


class Activity:
    """One rank's activity; its heartbeats carry it.

    Attributes:
        part: of the rank's life, as `worker.contract.RankReport.part` says it.
        progress: grows with each micro-batch, message and part that is done.
    """

    def __init__(self) -> None:
        self.part = "starting"
        self.progress = 0
        self._lock = threading.Lock()
        self._waiting: dict[int, bool] = {}  # threads that wait for peers: may they be left?
        self._left: set[int] = set()
        self._leader = threading.main_thread().ident

    @property
    def waiting(self) -> bool:
        """Whether peers are waited for, not this rank by them.

        While it trains, the thread that trains alone says so: another one that prepares the next
        epoch may wait for minutes, or be done, without a word about the step.
        """
        if self.part == "training":
            return self._leader in self._waiting
        return bool(self._waiting)

    def begin(self, part: str) -> None:
        """A part begins, which is progress."""
        self.part = part
        self.progress += 1

    def lead(self) -> None:
        """This thread is the one that trains."""
        self._leader = threading.get_ident()

    def advance(self) -> None:
        """One more unit of work is done."""
        self.progress += 1

    @contextmanager
    def wait(self, *, may_be_left: bool = False) -> Iterator[None]:
        """Peers are waited for in this thread; that they came is progress.

        Args:
            may_be_left: this waits for a connection alone, see `leave_behind`.

        Raises:
            LeftBehind: see there.
        """
        me = threading.get_ident()
        with self._lock:
            self._waiting[me] = may_be_left
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(me, None)
                is_left = me in self._left
                self._left.discard(me)  # its number may be that of a later thread
            if is_left:
                raise LeftBehind
            self.progress += 1

    def leave_behind(self, thread: int) -> bool:
        """Give up a thread that waits for a connection, if it does: if it ever returns, it ends."""
        with self._lock:
            may_be_left = self._waiting.get(thread, False)
            if may_be_left:
                self._left.add(thread)
                del self._waiting[thread]
            return may_be_left
