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


@dataclass(frozen=True, slots=True)
class PodLog:
    """The log of one container of a pod, each line with its time, as Kubernetes gives it."""

    pod: str
    text: str
    container: str = WORKER

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
    whose = log.pod if log.container == WORKER else f"{log.pod}/{log.container}"
    return [f"{whose} | {line.partition(' ')[2]}" for line in log.text.splitlines()]
