"""How long a device may take to come to an end once its world is broken.

Its own work may take as long as a step; a peer holds nothing up any more.
"""

from __future__ import annotations

from migration.transport import END_S

FIRST_S = 15.0  # of an epoch in which no wait has ended yet: kernels are loaded
MOST_S = 300.0  # a longer wait was one for a peer, which says nothing about the device


class WaitLimit:
    """The limit of one device, by the waits that ended while nothing was broken."""

    def __init__(self) -> None:
        self._longest_s: float | None = None  # of this epoch
        self._before_s = 0.0  # of the epoch before, whose steps are much like those of this one

    @property
    def seconds(self) -> float:
        """The limit: twice the longest wait of this epoch and the one before, within bounds."""
        least_s = FIRST_S if self._longest_s is None else END_S
        return min(MOST_S, max(least_s, 2 * max(self._before_s, self._longest_s or 0.0)))

    def ended(self, wait_s: float) -> None:
        """A wait took so long."""
        self._longest_s = max(self._longest_s or 0.0, wait_s)

    def begin_epoch(self) -> None:
        """Forget the waits before the epoch that ends."""
        self._before_s, self._longest_s = self._longest_s or 0.0, None
