"""Micro-batches read a little ahead by a thread, so that training does not wait for a disk.

Invariant: what is read is what `read(step)` gives, in its order; an error is raised where the
micro-batch that it belongs to is asked for.  Closing returns at once, whatever the thread does, so
it delays no change of plan.
"""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from worker.data.batches import MicroBatch

AHEAD = 4  # micro-batches: a step's begin is read while the one before it ends
Read = Callable[[int], Iterator[MicroBatch]]  # the micro-batches of a step
Waiting = Callable[[], AbstractContextManager[None]]


class Prefetch:
    """The micro-batches of one replica, step by step.

    It begins to read when the first one is asked for, so a stage that needs none reads none, and
    begins anew where another step is asked for than the one that follows.
    """

    def __init__(self, read: Read, ahead: int = AHEAD, waiting: Waiting = nullcontext) -> None:
        """Read when asked.

        Args:
            read: is called in a thread.
            ahead: at most so many micro-batches wait.
            waiting: entered by who asks, while its micro-batch is not read yet.
        """
        self._read, self._ahead, self._waiting = read, ahead, waiting
        self._reading: _Reading | None = None
        self._following: int | None = None  # the step whose first micro-batch comes next

    def of_step(self, step: int, count: int) -> Iterator[MicroBatch]:
        """The `count` micro-batches of a step."""
        for index in range(count):
            if index == 0:
                self._go_to(step)
            assert self._reading is not None
            batch = self._reading.take(self._waiting)
            self._following = step + 1 if index + 1 == count else None
            yield batch

    def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.stop()
            self._reading = None

    def _go_to(self, step: int) -> None:
        if self._reading is None or self._following != step:
            self.close()
            self._reading = _Reading(self._read, step, self._ahead)


class _Reading:
    """One thread, and what it has read."""

    def __init__(self, read: Read, step: int, ahead: int) -> None:
        self._waiting: collections.deque[MicroBatch | Exception] = collections.deque()
        self._ahead, self._is_stopped = ahead, False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, args=(read, step), name="prefetch", daemon=True).start()

    def take(self, waiting: Waiting) -> MicroBatch:
        """The next one; `waiting` is entered while it is not there.

        Raises:
            Exception: what reading it raised.
            RuntimeError: it was closed meanwhile, by another thread than this one.
        """
        with self._changed:
            if not self._waiting:
                with waiting():
                    self._changed.wait_for(lambda: self._waiting or self._is_stopped)
            if self._is_stopped:
                raise RuntimeError("these data are read no more")
            found = self._waiting[0]
            if isinstance(found, Exception):
                raise found  # and again, whenever it is asked for
            self._waiting.popleft()
            self._changed.notify_all()
        return found

    def stop(self) -> None:
        """Let the thread end by itself."""
        with self._changed:
            self._is_stopped = True
            self._waiting.clear()
            self._changed.notify_all()

    def _run(self, read: Read, step: int) -> None:
        try:
            for batch in itertools.chain.from_iterable(map(read, itertools.count(step))):
                if not self._put(batch):
                    return
        except Exception as error:  # it is the trainer's, who asks for this micro-batch later
            self._put(error)

    def _put(self, found: MicroBatch | Exception) -> bool:
        """Whether it is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or len(self._waiting) < self._ahead)
            if not self._is_stopped:
                self._waiting.append(found)
                self._changed.notify_all()
            return not self._is_stopped
