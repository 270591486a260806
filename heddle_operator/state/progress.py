"""Ranks that send heartbeats: which of them are waited for, and when none of an epoch gets on.

A slow rank is named and waited for; an epoch in which nobody gets on any more hangs.
Invariant: how long a rank made no progress is counted up to its agent's newest report, so that an
operator that was held up itself takes nobody for stuck.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.saves import Heard
from heddle_operator.state.settings import Settings
from heddle_operator.state.snapshot import AgentView, MemberView, Observed
from planner.wording import counted
from worker.contract import (
    READING,
    READING_S,
    RECORDS_KEPT,
    Member,
    RankReport,
    Report,
    SaveRecord,
    StepRecord,
)

MOVING = ("starting", "prepared", "training", "switching")
NAMED = 3  # ranks that a sentence names


@dataclass(frozen=True, slots=True)
class _Row:
    """A member's rank process and for how long it made no progress."""

    member: Member
    rank: RankReport
    idle_s: float


def progress_times(before: AgentView | None, report: Report, now: float) -> Mapping[int, float]:
    """When the rank of each slot last made progress, as far as two reports can tell."""
    old = before.report.ranks if before is not None and before.report is not None else ()
    known = {rank.slot: _mark(rank) for rank in old}
    times = before.progressed_s if before is not None else {}
    return {
        rank.slot: times.get(rank.slot, now) if known.get(rank.slot) == _mark(rank) else now
        for rank in report.ranks
    }


def save_times(before: AgentView | None, report: Report, now: float) -> Mapping[SaveRecord, Heard]:
    """When the saves of a report were heard of, by the operator's clock."""
    known: Mapping[SaveRecord, Heard] = {}
    since_s = -math.inf  # of an agent that is heard for the first time, its pod's clock is all
    if before is not None and before.report is not None:
        known, since_s = before.saves_heard, before.heard_s
    return {save: known.get(save, (since_s, now)) for save in report.saves}


def not_finite_steps(before: AgentView | None, report: Report) -> tuple[StepRecord, ...]:
    """Steps whose loss or norm is not finite: a report tells only of the newest ones.

    Those are left out that fp16 skips on its way to a smaller loss scale.
    """
    found = {record.step: record for record in (before.not_finite if before is not None else ())}
    for record in report.steps:
        is_finite = math.isfinite(record.loss) and math.isfinite(record.gradient_norm)
        if not is_finite and not record.overflowed:
            found[record.step] = record
    return tuple(found[step] for step in sorted(found)[-RECORDS_KEPT:])


def idle_s(seen: MemberView, since_s: float) -> float:
    """Seconds without progress of a member, from `since_s` on, up to its agent's newest report."""
    agent = seen.agent
    if agent is None or agent.unreachable_since_s is not None:
        return 0.0
    progressed_s = agent.progressed_s.get(seen.member.slot, since_s)
    return max(0.0, agent.heard_s - max(since_s, progressed_s))


def stalled(observed: Observed, record: EpochRecord, settings: Settings) -> str:
    """That no rank of an epoch gets on, and where they are; "" while any does.

    A disk of data that stalls is waited for as long as the agents wait for it.
    """
    rows = _moving_rows(observed, record)
    allowed_s = progress_timeout_s(record, settings)
    if any(row.rank.part == READING for row in rows):
        allowed_s = max(allowed_s, READING_S)
    if not rows or min(row.idle_s for row in rows) < allowed_s:
        return ""
    busy = [row for row in rows if not row.rank.waiting]
    names = _in_words(busy or rows)
    return f"no rank of epoch {record.epoch} has made progress for {allowed_s:g} s: {names}"


def waits_for_a_leaver(observed: Observed, record: EpochRecord, settings: Settings) -> str:
    """That all members of a change wait for one that left before it had voted; "" if not so.

    Its connections tell those that move state; those that have voted look at the store alone.
    """
    rows = _rows(observed, record)
    members = observed.members(record)
    gone = [seen.member for seen in members if seen.member.rank is None and seen.rank is None]
    limit_s = settings.peer_timeout_s
    if not gone or not rows or any(not r.rank.waiting or r.idle_s < limit_s for r in rows):
        return ""
    return f"the rank on GPU {gone[0].gpu} of {gone[0].node} was lost before it had voted"


def progress_timeout_s(record: EpochRecord, settings: Settings) -> float:
    """How long an epoch may get nowhere: long for one whose steps are long."""
    return max(settings.progress_timeout_s, settings.progress_steps * (record.step_s or 0.0))


def slow_ranks(observed: Observed, record: EpochRecord, settings: Settings) -> str:
    """Whom the epoch has waited for, longer than for a silent one, and in which part."""
    rows = _rows(observed, record)
    limit_s = settings.peer_timeout_s
    waiting = [row for row in rows if row.rank.waiting]
    busy = [row for row in rows if not row.rank.waiting and row.rank.phase in MOVING]
    reading = [row for row in busy if row.rank.part == READING and row.idle_s >= limit_s]
    if reading:  # nobody else need wait: one disk may hold all of them up
        return f"epoch {record.epoch} waits for {_in_words(reading)}"
    if not waiting or not busy or min(row.idle_s for row in waiting) < limit_s:
        return ""
    return f"epoch {record.epoch} waits for {_in_words(busy)}"


def unprepared(observed: Observed, record: EpochRecord) -> str:
    """The ranks that an epoch which is being prepared still waits for, in words; "" for none."""
    rows = _rows(observed, record)
    return _in_words([row for row in rows if row.rank.pending_epoch != record.epoch])


def _mark(rank: RankReport) -> tuple[object, ...]:
    """A value that changes whenever a rank gets on."""
    return (rank.pid, rank.phase, rank.part, rank.step, rank.progress, rank.pending_epoch)


def _moving_rows(observed: Observed, record: EpochRecord) -> list[_Row]:
    """The members that take part; none if one of them is told of otherwise (halted, gone)."""
    found, since_s = [], _since_s(record)
    for seen in observed.members(record):
        member, rank = seen.member, seen.rank
        if member.rank is None and rank is None:
            continue
        if rank is None:
            return []
        recovers = rank.phase == "halted" and rank.pending_epoch == record.epoch
        if rank.phase == "halted" and not recovers:
            return []
        if recovers or rank.phase in MOVING:
            found.append(_Row(member, rank, idle_s(seen, since_s)))
    return found


def members_with_ranks(observed: Observed, record: EpochRecord) -> list[tuple[Member, RankReport]]:
    """The members of an epoch whose agents answer and whose rank processes live."""
    return [(seen.member, seen.rank) for seen in observed.members(record) if seen.rank is not None]


def _since_s(record: EpochRecord) -> float:
    return record.seal.sealed_s if record.seal else record.adopted_s


def _rows(observed: Observed, record: EpochRecord) -> list[_Row]:
    since_s = _since_s(record)
    return [
        _Row(seen.member, seen.rank, idle_s(seen, since_s))
        for seen in observed.members(record)
        if seen.rank is not None
    ]


def _in_words(rows: list[_Row]) -> str:
    named = [
        f"the rank on GPU {row.member.gpu} of {row.member.node} "
        f"(in part {row.rank.part or row.rank.phase})"
        for row in rows[:NAMED]
    ]
    more = f" and {counted(len(rows) - NAMED, 'more rank')}" if len(rows) > NAMED else ""
    return ", ".join(named) + more
