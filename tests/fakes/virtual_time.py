"""An event loop whose clock jumps to whatever is next, so that hours pass in a moment."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _NothingComes(selectors.SelectSelector):
    """Waiting moves the clock instead: nothing ever comes from outside."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits for something that never comes")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0 s."""

    def __init__(self) -> None:
        self._virtual = _NothingComes()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Seconds since it started."""
        return self._virtual.now


def run_virtually(main: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
