"""Objects of an earlier job of the same name, which the garbage collector removes soon."""

from __future__ import annotations

import time
from collections.abc import Callable

from heddle_operator.apis.errors import EarlierJobRemains, NameTaken

TOLD_S = 30.0  # what an earlier job left, or what is applied a moment later, is no warning before


class EarlierObjects:
    """Since when each of them is in the way.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def is_told(self, error: NameTaken) -> bool:
        """Whether somebody must look at the object: nobody removes it, or it has not gone yet."""
        if not isinstance(error, EarlierJobRemains):
            return True
        now_s = self._clock()
        return now_s - self._since_s.setdefault(str(error), now_s) >= TOLD_S
