"""Which epoch records go: all but what somebody may still need, and the newest for history.

A record is needed while a rank may hold its layout, while an agent follows it, while a directive
that may be sent again names it, and while it counts for `backoffLimit`.
Invariants: the newest record stays, so that numbers only grow; nothing goes while any agent's word
is missing, because its ranks may hold any layout.
Source: Kubernetes' `revisionHistoryLimit` of Deployments.
"""

from __future__ import annotations

from heddle_operator.rules.failures import is_remembered
from heddle_operator.rules.limits import attempts_that_count
from heddle_operator.state.actions import PruneEpoch
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.situation import Situation, View
from heddle_operator.state.snapshot import Observed
from worker.contract import Report


def prune_epochs(view: View) -> tuple[PruneEpoch, ...]:
    """Records that nothing needs any more, oldest first."""
    observed = view.observed
    old = [record.epoch for record in observed.epochs[: -max(1, view.settings.epochs_kept)]]
    if not old or not _have_all_reported(observed):
        return ()
    needed = _needed(observed, view.situation)
    needed |= {record.epoch for record in observed.epochs if is_remembered(record, view.now)}
    needed |= attempts_that_count(view.job, observed.epochs)
    return tuple(PruneEpoch(epoch) for epoch in old if epoch not in needed)


def _have_all_reported(observed: Observed) -> bool:
    """Whether every pod that may host ranks has told what they hold, and still answers."""
    views = [observed.agents.get(pod.name) for pod in observed.pods if pod.phase == "running"]
    return all(
        agent is not None and agent.report is not None and agent.unreachable_since_s is None
        for agent in views
    )


def _needed(observed: Observed, situation: Situation) -> set[int]:
    """Epochs whose records are read: by this operator, or by agents through a directive."""
    lived = [record.epoch for record in observed.epochs if record.outcome == "live"]
    known = (situation.live, situation.pending, situation.left)
    found = {record.epoch for record in known if record is not None}
    found |= set(lived[-1:])  # that the job ever lived is known from it
    for agent in observed.agents.values():
        if agent.report is not None:
            found |= _epochs_of(agent.report)
    for epoch in tuple(found):
        record = observed.record(epoch)
        if record is not None:
            found |= _held_in(record)
    return found


def _epochs_of(report: Report) -> set[int]:
    """Epochs that an agent follows, or that its ranks hold or prepare."""
    found = {report.epoch}
    for rank in report.ranks:
        found |= {rank.epoch, rank.also_epoch, rank.pending_epoch}
    return {epoch for epoch in found if epoch is not None}


def _held_in(record: EpochRecord) -> set[int]:
    """Epochs whose layouts the directives of a sealed epoch carry."""
    members = record.seal.members if record.seal is not None else ()
    held = {epoch for member in members for epoch in (member.holds, member.also_holds)}
    return {epoch for epoch in held if epoch is not None}
