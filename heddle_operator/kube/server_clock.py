"""The API server's wall clock, told by the Date of its answers.

Times in objects are of that clock, so this machine's own, which may be hours off or be set while
the operator runs, is never asked.
Source: Cristian's algorithm; RFC 9110, 6.6.1 (a Date has whole seconds).
"""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime


class ServerClock:
    """The server's clock less the monotonic one of this machine, within a second and less."""

    def __init__(self) -> None:
        self._bounds: tuple[float, float] | None = None

    @property
    def offset_s(self) -> float:
        """Seconds to add to the monotonic clock; by this machine's clock before any answer."""
        if self._bounds is None:
            return time.time() - time.monotonic()
        return sum(self._bounds) / 2

    def heard(self, date: str, sent_s: float, received_s: float) -> None:
        """Take over the Date of an answer.

        Args:
            date: the header; "" if there was none.
            sent_s: when its request was sent, of the monotonic clock.
            received_s: when the answer came.
        """
        try:
            told_s = parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError):
            return
        low, high = told_s - received_s, told_s + 1 - sent_s
        if self._bounds is not None:
            both = max(low, self._bounds[0]), min(high, self._bounds[1])
            if both[0] <= both[1]:
                low, high = both
        self._bounds = low, high  # no overlap: the server's clock was set
