"""How often something may happen that others decide on: in bursts at once, and slowly for ever.

Whatever is rare happens when it is due, so that nobody who behaves waits for the limit.
Source: the generic cell rate algorithm (ITU-T I.371).
"""

from __future__ import annotations


class Pace:
    """Allows `burst` times at once, and one more every `pause_s`.

    Args:
        pause_s: between two of them in the long run.
        burst: that may come without a pause.
    """

    def __init__(self, pause_s: float, burst: int) -> None:
        self._pause_s = pause_s
        self._slack_s = pause_s * burst
        self._due_s = float("-inf")

    def wait_s(self, now: float, pause_s: float = 0.0) -> float:
        """It happened: seconds until it may happen again.

        Args:
            now: by a monotonic clock.
            pause_s: that this time asks for, if it is more than usual.
        """
        self._due_s = max(self._due_s, now - self._slack_s) + max(self._pause_s, pause_s)
        return max(0.0, self._due_s - now)

    def may(self, now: float) -> bool:
        """Whether it may happen now; if so, it does."""
        if max(self._due_s, now - self._slack_s) + self._pause_s > now:
            return False
        self.wait_s(now)
        return True
