"""The logs of a job's pods, in the order in which somebody who looks for a fault wants them.

Invariant: no line is lost; the pod whose traceback came first comes first, since what others say
later follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from heddle_operator.apis.labels import WORKER

TRACEBACK = "Traceback (most recent call last):"
NO_LOG = "- (no log: "
SECONDS = len("2026-11-29T15:24:53")  # of a time; Kubernetes writes nine digits more


@dataclass(frozen=True, slots=True)
class PodLog:
    """The log of one container of a pod, each line with its time, as Kubernetes gives it."""

    pod: str
    text: str
    container: str = WORKER

    @property
    def is_refusal(self) -> bool:
        """Whether the API server gave no log, but a reason."""
        return self.text.startswith(NO_LOG)

    @property
    def whose(self) -> str:
        """Its pod, and its container where it is not the worker."""
        return self.pod if self.container == WORKER else f"{self.pod}/{self.container}"

    @property
    def first_traceback(self) -> str:
        """The time of the first line of the first traceback; "" without one."""
        for line in self.text.splitlines():
            time, _, words = line.partition(" ")
            if TRACEBACK in words:
                return time
        return ""


def containers_of(pod: Mapping[str, Any]) -> list[str]:
    """The containers of a Pod object to read: the worker, or what kept it from starting."""
    failed = []
    for status in pod.get("status", {}).get("initContainerStatuses") or ():
        states = (status.get("state") or {}, status.get("lastState") or {})
        if any((state.get("terminated") or {}).get("exitCode") for state in states):
            failed.append(status["name"])
    return failed or [WORKER]


def ordered(logs: Iterable[PodLog]) -> list[PodLog]:
    """Pods with a traceback by its time, then the others by name."""
    return sorted(logs, key=lambda log: (not log.first_traceback, log.first_traceback, log.pod))


def lines_of(log: PodLog) -> list[str]:
    """The lines, each with its pod, and its container where it is not the worker; no times."""
    return [f"{log.whose} | {line.partition(' ')[2]}" for line in log.text.splitlines()]


class Follower:
    """Lines that are new since the last look, of all pods in the order of their times."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int]] = {}  # by container: the last time, lines of it

    def since(self, whose: str) -> str:
        """The second of a container's last line, from which on its log is read; "" at first."""
        time, _ = self._seen.get(whose, ("", 0))
        return f"{time[:SECONDS]}Z" if time else ""

    def new_lines(self, logs: Iterable[PodLog]) -> list[str]:
        """As `lines_of`."""
        found: list[tuple[str, str]] = []
        for log in logs:
            last, seen = self._seen.get(log.whose, ("", 0))
            for line in log.text.splitlines():
                time, _, words = line.partition(" ")
                if time < last:
                    continue
                if time == last and seen:
                    seen -= 1  # it was told before
                    continue
                found.append((time, f"{log.whose} | {words}"))
            times = [line.partition(" ")[0] for line in log.text.splitlines()]
            if times:
                newest = max(times)
                self._seen[log.whose] = newest, times.count(newest)
        return [line for _, line in sorted(found, key=lambda row: row[0])]
