"""The logs of a job's pods, in the order in which somebody who looks for a fault wants them.

Invariant: no line is lost; the pod whose traceback came first comes first, since what others say
later follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class PodLog:
    """The log of one pod, each line with its time, as Kubernetes gives it."""

    pod: str
    text: str

    @property
    def first_traceback(self) -> str:
        """The time of the first line of the first traceback; "" without one."""
        for line in self.text.splitlines():
            time, _, words = line.partition(" ")
            if TRACEBACK in words:
                return time
        return ""


def ordered(logs: Iterable[PodLog]) -> list[PodLog]:
    """Pods with a traceback by its time, then the others by name."""
    return sorted(logs, key=lambda log: (not log.first_traceback, log.first_traceback, log.pod))


def lines_of(log: PodLog) -> list[str]:
    """The lines, each with its pod; without times."""
    return [f"{log.pod} | {line.partition(' ')[2]}" for line in log.text.splitlines()]
