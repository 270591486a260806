"""Looks at a run each second, to say what is wrong at first and then each minute while it lasts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from heddle.train.run import LocalRun

AGAIN_S = 60.0  # between two lines
LOOK_S = 1.0


class MinuteLines:
    """Says something of a run, seldom.

    Args:
        run: that trains.
        say: gets each line.
        clock: seconds, from any moment on.
    """

    def __init__(
        self,
        run: LocalRun,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._say = say
        self._clock = clock
        self._said_s: float | None = None

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Say what is due."""
        raise NotImplementedError

    def _is_due(self, now_s: float) -> bool:
        return self._said_s is None or now_s - self._said_s >= AGAIN_S
