"""How often a status is written: changes at once, progress and words now and then, nothing twice.

Invariant: the last status is always written in the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEAST_S = 0.5  # between two writes, whatever changed
PROGRESS_S = 5.0  # between two writes of which only progress, free GPUs or words differ
_MOVING = ("progress", "message", "usableGPUs")  # pods of others change them every second


class StatusThrottle:
    """Limits how often a status is written: remembers what was written, and when."""

    def __init__(self) -> None:
        self._written: Mapping[str, Any] = {}
        self._written_s = float("-inf")

    def differs(self, status: Mapping[str, Any]) -> bool:
        """Whether anything changed since the last write."""
        return dict(status) != self._written

    def wait_s(self, status: Mapping[str, Any], now: float) -> float:
        """Seconds until the status may be written."""
        if not self.differs(status):
            return 0.0
        only_progress = _settled(status) == _settled(self._written)
        return self._written_s + (PROGRESS_S if only_progress else LEAST_S) - now

    def written(self, status: Mapping[str, Any], now: float) -> None:
        """It was written."""
        self._written = dict(status)
        self._written_s = now


def _settled(status: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in status.items() if key not in _MOVING}
    rows = status.get("conditions") or ()
    found["conditions"] = [{k: v for k, v in row.items() if k != "message"} for row in rows]
    return found
