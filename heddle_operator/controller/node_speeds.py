"""The measured speeds of the nodes of one job, from look to look.

Invariant: what it forgets with its operator costs a minute of measuring, nothing else: what a plan
was chosen by is in the epoch's record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heddle_operator.state.snapshot import EpochRecord, Observed
from heddle_operator.state.speed import (
    KnownSpeed,
    Work,
    known_at_start,
    measured_speeds,
    updated,
    work_of,
)
from planner.model.shape import ModelShape


class NodeSpeeds:
    """What is known of the nodes' speeds.

    Args:
        model: that the job trains.
    """

    def __init__(self, model: ModelShape) -> None:
        self._model = model
        self._known: Mapping[str, KnownSpeed] | None = None
        self._work: tuple[int, tuple[Work, ...]] = (0, ())

    def seen(self, observed: Observed, now: float) -> Observed:
        """The picture with what is known of its nodes."""
        live = next((r for r in reversed(observed.epochs) if r.outcome == "live"), None)
        if self._known is None:
            self._known = known_at_start(observed.nodes, live, now)
        measured = measured_speeds(observed, live, self._work_of(live)) if live else {}
        step_s = (live.step_s or 0.0) if live else 0.0
        # Of all others nothing is known or measured, and nothing will be.
        told = [n for n in observed.nodes if n.name in self._known or n.name in measured]
        known = updated(self._known, told, measured, now, step_s)
        self._known = {name: each for name, each in known.items() if not _is_usual(each)}
        slow = {name: each.speed for name, each in self._known.items() if each.speed != 1.0}
        if not slow:
            return observed
        nodes = tuple(
            replace(node, measured_speed=slow[node.name]) if node.name in slow else node
            for node in observed.nodes
        )
        return replace(observed, nodes=nodes)

    def _work_of(self, live: EpochRecord) -> tuple[Work, ...]:
        if self._work[0] != live.epoch:
            self._work = (live.epoch, work_of(live.plan, self._model))
        return self._work[1]


def _is_usual(known: KnownSpeed) -> bool:
    """Whether it says no more of a node than what is believed of one that is not known."""
    return known.speed == 1.0 and known.differs_since_s is None and not known.times
