"""The measured speeds of the nodes of one job and of their GPU types, from look to look.

Invariant: what it forgets with its operator costs a minute of measuring, nothing else: what a plan
was chosen by is in the epoch's record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heddle_operator.state.epoch_record import EpochRecord, newest_live
from heddle_operator.state.snapshot import Observed, ObservedNode
from heddle_operator.state.speeds.node_speed import (
    KnownSpeed,
    known_at_start,
    measured_speeds,
    updated,
)
from heddle_operator.state.speeds.type_speed import (
    KnownTypeSpeed,
    measured_types,
    types_at_start,
    updated_types,
)
from heddle_operator.state.speeds.work import Work, work_of
from planner.model.shape import ModelShape
from planner.profiles.profile import Profile


class NodeSpeeds:
    """Known speeds of nodes and of their GPU types.

    Args:
        model: that the job trains.
        profile: by which its plans are priced; None: every type is as fast as its profile says.
    """

    def __init__(self, model: ModelShape, profile: Profile | None = None) -> None:
        self._model = model
        self._profile = profile
        self._known: Mapping[str, KnownSpeed] | None = None
        self._types: Mapping[str, KnownTypeSpeed] = {}
        self._work: tuple[int, tuple[Work, ...]] = (0, ())

    def price_by(self, profile: Profile) -> None:
        """Compare with the times of another profile from now on."""
        self._profile, self._work = profile, (0, ())

    def seen(self, observed: Observed, now: float) -> Observed:
        """The picture with what is known of its nodes."""
        live = newest_live(observed.epochs)
        if self._known is None:
            self._types = types_at_start(observed.nodes, live) if self._profile else {}
            types = {name: each.speed for name, each in self._types.items()}
            self._known = known_at_start(observed.nodes, live, now, types)
        work = self._work_of(live) if live else ()
        measured = measured_speeds(observed, live, work) if live else {}
        step_s = (live.step_s or 0.0) if live else 0.0
        # Of all others nothing is known or measured, and nothing will be.
        told = [n for n in observed.nodes if n.name in self._known or n.name in measured]
        known = updated(self._known, told, measured, now, step_s)
        self._known = {name: each for name, each in known.items() if not _is_usual(each)}
        slow = {name: each.speed for name, each in self._known.items() if each.speed != 1.0}
        found = measured_types(observed, live, work, slow) if live and self._profile else {}
        self._types = updated_types(self._types, found, now)
        return _with_speeds(observed, slow, self._types)

    def _work_of(self, live: EpochRecord) -> tuple[Work, ...]:
        if self._work[0] != live.epoch:
            self._work = (live.epoch, work_of(live.plan, self._model, self._profile))
        return self._work[1]


def _with_speeds(
    observed: Observed, slow: Mapping[str, float], types: Mapping[str, KnownTypeSpeed]
) -> Observed:
    """The picture, in which only nodes that are not as fast as usual are new objects."""

    def told(node: ObservedNode) -> ObservedNode:
        own = slow.get(node.name, 1.0)
        of_type = types[node.gpu_type].speed if node.gpu_type in types else 1.0
        if own == of_type == 1.0:
            return node
        return replace(node, measured_speed=own, type_speed=of_type)

    if not slow and not types:
        return observed
    return replace(observed, nodes=tuple(map(told, observed.nodes)))


def _is_usual(known: KnownSpeed) -> bool:
    """Whether it says no more of a node than what is believed of one that is not known."""
    return known.speed == 1.0 and known.differs_since_s is None and not known.times
