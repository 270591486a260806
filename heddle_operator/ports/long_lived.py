"""Keeps what lives long out of garbage collections, which would hold the event loop up.

A thousand nodes and what fifty jobs make of them are a million objects: a full collection looks at
each for 0.17 s of CPU time, once a second, and frees nothing.  So after a costly one all that lives
is frozen; what came since is looked at as before.
Invariant: garbage in cycles is freed all the same, after an hour at most in which anything lives.
Source: CPython's gc.freeze.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

COSTLY_S = 0.02  # CPU seconds of a full collection that is to be the last of its kind
THAW_S = 3600.0  # after so long all is looked at once again


class LongLived:
    """While entered, costly collections happen once in `THAW_S`, but for what is new.

    Args:
        clock: in seconds.
        cpu: CPU seconds of this thread.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._cpu = clock, cpu
        self._began_s = 0.0
        self._frozen_s: float | None = None

    def __enter__(self) -> Self:
        gc.callbacks.append(self._tell)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        gc.callbacks.remove(self._tell)
        gc.unfreeze()

    def _tell(self, phase: str, said: Mapping[str, int]) -> None:
        if phase == "start":
            self._began_s = self._cpu()
        elif said["generation"] == 2:
            if self._cpu() - self._began_s > COSTLY_S:
                gc.freeze()
                if self._frozen_s is None:
                    self._frozen_s = self._clock()
            if self._frozen_s is not None and self._clock() - self._frozen_s > THAW_S:
                gc.unfreeze()  # the next full collection looks at all, and all is frozen again
                self._frozen_s = None
