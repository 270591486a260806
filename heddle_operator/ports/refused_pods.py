"""Pods that could not be created, and since when: what is told of them, and forgotten.

Invariant: a pod that no open epoch wants is in no list, however long the operator runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from heddle_operator.state.actions import CreatePod
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.snapshot import ObservedPod, RefusedPod


class RefusedPods:
    """The newest refusal of each pod."""

    def __init__(self) -> None:
        self._rows: dict[str, RefusedPod] = {}

    def note(self, action: CreatePod, message: str, now: float, passes: bool = False) -> None:
        """A pod was refused.

        Args:
            action: that was tried.
            message: the cluster's own words.
            now: by the loop's clock.
            passes: it is no word on the pod, and another try may do.
        """
        before = self._rows.get(action.name)
        since_s = before.since_s if before is not None and before.since_s < math.inf else now
        self._rows[action.name] = RefusedPod(
            action.name, action.node, message, now, math.inf if passes else since_s
        )

    def made(self, name: str) -> None:
        """The pod is there."""
        self._rows.pop(name, None)

    def wanted(
        self, pods: Iterable[ObservedPod], epochs: Iterable[EpochRecord]
    ) -> tuple[RefusedPod, ...]:
        """Refusals of pods that an open epoch still lacks, by name; others are forgotten."""
        there = {pod.name for pod in pods}
        nodes = {n for record in epochs if record.outcome == "open" for n in record.plan.nodes}
        self._rows = {
            name: row
            for name, row in sorted(self._rows.items())
            if name not in there and row.node in nodes
        }
        return tuple(self._rows.values())
