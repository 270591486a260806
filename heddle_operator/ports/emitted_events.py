"""Events of a job that were told: each once, and few of one reason.

What pods of others or a flapping node let happen again and again would fill the API server.
Source: client-go's `EventSourceObjectSpamFilter`.
"""

from __future__ import annotations

from heddle_operator.ports.pace import Pace
from heddle_operator.state.actions import EventReason, RecordEvent
from heddle_operator.state.recent import Recent

BURST, PAUSE_S = 25, 60.0  # of one reason: at once, and between two of them in the long run


class EmittedEvents:
    """Remembers the newest keys, and the pace of each reason."""

    def __init__(self) -> None:
        self._keys: Recent[str] = Recent()
        self._paces: dict[EventReason, Pace] = {}

    def add(self, event: RecordEvent, now: float) -> bool:
        """Whether to tell an Event; one that is too much is told later, if it still holds then.

        Args:
            event: that a look at the job asks for.
            now: by a monotonic clock.
        """
        if event.key in self._keys:
            self._keys.add(event.key)
            return False
        pace = self._paces.setdefault(event.reason, Pace(PAUSE_S, BURST))
        return pace.may(now) and self._keys.add(event.key)
