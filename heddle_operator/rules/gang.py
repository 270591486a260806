"""All or nothing at the start: after a lost race for GPUs, jobs try again one after the other.

Two jobs that start at once may each get a part of what they need.  Both give it back, and the one
whose turn comes first then takes all; the other sees that in its claims.
Invariant: a job's turn depends on the job and on its records only, so that every operator sees the
same one.
Source: the random back-off of Ethernet; kube-scheduler's coscheduling plugin gives back, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.situation import View
from planner.pauses import doubled_s
from planner.plans.plan import Plan

TURN_S = 2.0  # within which the first turn comes; then within twice as long ...
TURN_LIMIT_S = 16.0


def turn_left_s(view: View, plan: Plan) -> float:
    """Seconds until a job that lost a race may ask for pods again; 0 where it has them all."""
    hosting = {pod.node for pod in view.observed.pods if not pod.deleting}
    lost = lost_races(view.observed.epochs)
    if not lost or set(plan.nodes) <= hosting:
        return 0.0
    newest = lost[-1]
    within_s = doubled_s(TURN_S, len(lost), TURN_LIMIT_S)
    share = _share(f"{view.job.metadata.uid or view.job.name}/{newest.epoch}")
    return max(0.0, (newest.closed_s or view.now) + share * within_s - view.now)


def lost_races(epochs: Iterable[EpochRecord]) -> list[EpochRecord]:
    """The newest starts in a row that were given up before they were sealed, by nobody's fault."""
    found: list[EpochRecord] = []
    for record in epochs:
        is_lost = record.outcome == "aborted" and record.reason == "start" and record.seal is None
        found = [*found, record] if is_lost and not record.start_failures else []
    return found


def _share(text: str) -> float:
    """A number in [0, 1) that is the same for the same text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest()) / 2**48
