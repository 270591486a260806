"""How long the event loop stands still: from what it waited for until it waits again.

Nothing else is served meanwhile, whatever number of callbacks it is.  The time is taken where the
loop asks for what happened, which costs a microsecond a turn and no task of its own.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any

Turn = Callable[[float, float], None]


class TimedSelector(selectors.DefaultSelector):
    """A selector that tells how long its loop was away.

    Args:
        turn: takes the seconds, and the loop thread's CPU seconds in them.
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._turn = turn
        self._left: tuple[float, float] | None = None  # when the loop went to work

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        """Ready events, as selectors report them."""
        if self._left is not None:
            at_s, cpu_s = self._left
            self._turn(time.monotonic() - at_s, time.thread_time() - cpu_s)
        found = super().select(timeout)
        self._left = time.monotonic(), time.thread_time()
        return found


def timed_loop(turn: Turn) -> asyncio.AbstractEventLoop:
    """A new event loop that tells of each of its turns, as `TimedSelector` does."""
    return asyncio.SelectorEventLoop(TimedSelector(turn))
