"""Activity of a rank, written by the threads that do it and read by the one that tells it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from worker.contract import READING


class LeftBehind(BaseException):
    """This thread was left behind while it waited, and may touch nothing any more.

    No `Exception`: whoever handles the errors of a wait is not to go on here.
    """


class _Wait(NamedTuple):
    """A wait of one thread: for peers, or else for data; whether the thread may be left."""

    is_for_peers: bool
    may_be_left: bool


class Activity:
    """One rank's activity; its heartbeats carry it.

    Attributes:
        progress: grows with each micro-batch, message and part that is done.
    """

    def __init__(self) -> None:
        self._part = "starting"
        self.progress = 0
        self._lock = threading.Lock()
        self._waits: dict[int, _Wait] = {}  # by thread
        self._left: set[int] = set()
        self._leader = threading.main_thread().ident

    @property
    def part(self) -> str:
        """Part of the rank's life, as `worker.contract.RankReport.part` says it."""
        wait = self._waits.get(self._leader or 0)
        return READING if wait is not None and not wait.is_for_peers else self._part

    @property
    def waiting(self) -> bool:
        """Whether peers are waited for, not this rank by them.

        While it trains, the thread that trains alone says so: another one that prepares the next
        epoch may wait for minutes, or be done, without a word about the step.
        """
        with self._lock:
            waits = dict(self._waits)
        if self._part == "training":
            waits = {thread: wait for thread, wait in waits.items() if thread == self._leader}
        return any(wait.is_for_peers for wait in waits.values())

    def begin(self, part: str) -> None:
        """A part begins, which is progress."""
        self._part = part
        self.progress += 1

    def lead(self) -> None:
        """This thread is the one that trains."""
        self._leader = threading.get_ident()

    def advance(self) -> None:
        """One more unit of work is done."""
        self.progress += 1

    @contextmanager
    def read(self) -> Iterator[None]:
        """Data are waited for in this thread, which trains; that they came is progress.

        The thread may be left behind, see `leave_behind`: nothing ends a wait for a disk.

        Raises:
            LeftBehind: see there.
        """
        with self._wait(_Wait(is_for_peers=False, may_be_left=True)):
            yield

    @contextmanager
    def wait(self, *, may_be_left: bool = False) -> Iterator[None]:
        """Peers are waited for in this thread; that they came is progress.

        Args:
            may_be_left: this waits for a connection alone, see `leave_behind`.

        Raises:
            LeftBehind: see there.
        """
        with self._wait(_Wait(is_for_peers=True, may_be_left=may_be_left)):
            yield

    @contextmanager
    def _wait(self, wait: _Wait) -> Iterator[None]:
        me = threading.get_ident()
        with self._lock:
            self._waits[me] = wait
        try:
            yield
        finally:
            with self._lock:
                self._waits.pop(me, None)
                is_left = me in self._left
                self._left.discard(me)  # its number may be that of a later thread
            if is_left:
                raise LeftBehind
            self.progress += 1

    def leave_behind(self, thread: int) -> bool:
        """Give up a thread that waits for a connection or a disk: if it ever returns, it ends.

        Returns:
            Whether it waits so.
        """
        with self._lock:
            wait = self._waits.get(thread)
            if wait is None or not wait.may_be_left:
                return False
            self._left.add(thread)
            del self._waits[thread]
            return True
