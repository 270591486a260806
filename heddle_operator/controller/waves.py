"""Which actions of a decision may be done at once, and which must wait for those before.

Invariant: effects of different kinds keep their order (a record before its pods, a deletion before
what takes its place); things of one kind have names of their own and do not touch each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from heddle_operator.state.actions import Action, CreatePod, DeletePod, PruneEpoch

_INDEPENDENT = (CreatePod, DeletePod, PruneEpoch)


def waves(actions: Iterable[Action]) -> tuple[tuple[Action, ...], ...]:
    """The actions in order; those of one wave may be done at once."""
    found: list[tuple[Action, ...]] = []
    for kind, run in itertools.groupby(actions, key=type):
        row = tuple(run)
        found += [row] if kind in _INDEPENDENT else [(action,) for action in row]
    return tuple(found)
