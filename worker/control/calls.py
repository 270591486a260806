"""Calls that may wait for a peer in C++, where nothing ends some of the waits.

Cutting a connection ends a wait for it with an error, but for one case: gloo forgets a message of
which a part has come or gone (torch 2.15; `Pair::signalException` knows only those that have not
begun).  Whoever waits for such a message waits as long as its group's patience, a day here.  So
such calls are made in a thread of their own.  When its connections have been cut and it waits on,
it is left behind with what it holds, and the call fails here as it should have there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from worker.control.activity import Activity, LeftBehind

T = TypeVar("T")
GRACE_S = 1.0  # for a wait to end by itself once its connections are cut
LOOK_S = 0.1  # between two looks whether the caller is interrupted


@dataclass(slots=True)
class _Call:
    """One call: what to do, and how it ended."""

    work: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None


class Calls:
    """Makes one call at a time, in a thread that is left behind when it cannot come back.

    Args:
        activity: told by that thread when it waits for peers.
    """

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._queue: queue.SimpleQueue[_Call] | None = None
        self._thread: threading.Thread | None = None

    def make(self, work: Callable[[], T], is_interrupted: Callable[[], bool]) -> T:
        """The result of `work`, or its error.

        Args:
            work: is done in the thread of the calls.
            is_interrupted: whether the connections were cut that it may wait for.

        Raises:
            ConnectionError: it waited on for a connection that was cut.
        """
        thread, calls = self._ready()
        call = _Call(work)
        calls.put(call)
        since_s: float | None = None
        while not call.done.wait(LOOK_S):
            if not is_interrupted():
                since_s = None
                continue
            since_s = since_s if since_s is not None else time.monotonic()
            is_late = time.monotonic() - since_s >= GRACE_S
            if is_late and self._activity.leave_behind(thread.ident or 0):
                self._thread = self._queue = None
                raise ConnectionError("a message ended in the middle")
        if call.error is not None:
            try:
                raise call.error
            finally:
                del call  # the error knows this frame: nothing of it would be freed at once
        result: T = call.result
        return result

    def _ready(self) -> tuple[threading.Thread, queue.SimpleQueue[_Call]]:
        if self._thread is None or self._queue is None:
            self._queue = queue.SimpleQueue()
            self._thread = threading.Thread(
                target=self._serve, args=(self._queue,), name="calls", daemon=True
            )
            self._thread.start()
        return self._thread, self._queue

    def _serve(self, calls: queue.SimpleQueue[_Call]) -> None:
        self._activity.lead()
        while True:
            call = calls.get()
            try:
                call.result = call.work()
            except LeftBehind:
                return
            except BaseException as error:  # raised again where it was called
                call.error = error
            call.done.set()
            del call  # its result and error are the caller's
