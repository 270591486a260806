"""Where the job stands, read from what its ranks hold and what is on record.

Three questions: which epoch is live, which one is pending, and which of the live epoch's ranks are
lost.
Invariant: what ranks hold counts more than what is on record: a rank that holds the state of epoch
e proves that e was voted for.
"""

from __future__ import annotations

from dataclasses import dataclass

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.wording import ended_with
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.progress import stalled
from heddle_operator.state.reachability import (
    is_doubtful,
    is_silent,
    report_of,
    sends_heartbeats,
)
from heddle_operator.state.reasons import LossReason
from heddle_operator.state.settings import Settings
from heddle_operator.state.snapshot import MemberView, Observed
from worker.contract import Member, RankExit, RankReport

ALIVE = ("training", "switching", "saving", "suspending", "suspended", "done")


@dataclass(frozen=True, slots=True)
class Holder:
    """A reachable rank process that holds state."""

    pod: str
    node: str
    rank: RankReport


@dataclass(frozen=True, slots=True)
class Lost:
    """Events of ranks of the live epoch.

    Attributes:
        reason: for programs.
        words: a clause that names the ranks.
    """

    reason: LossReason
    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Where the job stands.

    Attributes:
        live: the newest epoch that any rank holds, or that is on record as live; None before the
            first, and after one that was left behind.
        pending: an open epoch after the live one.
        holders: reachable ranks with state, by pod and slot.
        lost: what happened to ranks of the live epoch that neither train nor can, causes before
            consequences; empty while all is well.
        doubtful: pods whose agents do not answer, and may yet before they are lost.
        ever_live: some epoch is on record as live.
        outdated: ranks that halted with the state of a past epoch, which the others have left: they
            were cut off, and come back too late.  So are those of an epoch that was left behind.
        ended: (pod, rank process) that held the live epoch until it ended with an error.
        left: the epoch that the job left behind for a checkpoint; None once a later one is live.
        unread: the newest epoch that ranks hold, if its record cannot be read; None: it can.  A
            record that was pruned is none of these: a later epoch is live.
    """

    live: EpochRecord | None
    pending: EpochRecord | None
    holders: tuple[Holder, ...]
    lost: tuple[Lost, ...]
    doubtful: tuple[str, ...]
    ever_live: bool
    outdated: tuple[Holder, ...] = ()
    ended: tuple[tuple[str, RankExit], ...] = ()
    left: EpochRecord | None = None
    unread: int | None = None

    @property
    def is_stalled(self) -> bool:
        """Whether no rank of the live epoch makes progress."""
        return any(loss.reason == "Stalled" for loss in self.lost)


@dataclass(frozen=True, slots=True)
class View:
    """One look at a job: what every rule reads.

    Attributes:
        job: the user's wishes.
        observed: the cluster as it is.
        now: by the clock of the times in `observed`.
        settings: limits and expectations, those of the job included.
        situation: where the job stands.
    """

    job: HeddleJob
    observed: Observed
    now: float
    settings: Settings
    situation: Situation

    @classmethod
    def of(cls, job: HeddleJob, observed: Observed, now: float, settings: Settings) -> View:
        """Look at a picture, with the settings of the operator."""
        own = settings.of_job(job)
        return cls(job, observed, now, own, situation(observed, now, own))


def situation(observed: Observed, now: float, settings: Settings) -> Situation:
    """Read the situation from a snapshot."""
    left = next((record for record in reversed(observed.epochs) if record.is_left), None)
    first = left.epoch + 1 if left is not None else 0
    everybody: list[Holder] = []
    late: list[Holder] = []
    for holder in _holders(observed, settings):
        (everybody if (holder.rank.epoch or 0) >= first else late).append(holder)
    on_record = [
        r.epoch
        for r in observed.epochs
        if r.outcome in ("live", "complete", "failed") and r.closed_s is not None
        if r.epoch >= first
    ]
    lived = [r.epoch for r in observed.epochs if r.outcome == "live"]
    held = [holder.rank.epoch for holder in everybody if holder.rank.epoch is not None]
    newest = max(on_record + held, default=first - 1)
    live = observed.record(newest) if newest >= first else None
    current: list[Holder] = []
    outdated: list[Holder] = late
    for holder in everybody:
        (outdated if live and _is_outdated(holder, live) else current).append(holder)
    pending = next((r for r in observed.epochs if r.epoch > newest and r.outcome == "open"), None)
    lost = _lost(observed, live, pending, now, settings)
    switches = pending is not None and has_switch_begun(observed, pending.epoch)
    stall = stalled(observed, live, settings) if live and not lost and not switches else ""
    return Situation(
        live=live,
        pending=pending,
        holders=tuple(current),
        lost=lost or ((Lost("Stalled", stall),) if stall else ()),
        doubtful=tuple(
            name for name in sorted(observed.agents) if is_doubtful(observed, name, now, settings)
        ),
        ever_live=bool(lived),
        outdated=tuple(outdated),
        ended=_ended(observed, live),
        left=left if live is None else None,
        unread=newest if live is None and newest >= first else None,
    )


def has_switch_begun(observed: Observed, epoch: int) -> bool:
    """Whether any agent was told to switch to the epoch."""
    return any(
        view.report is not None and view.report.epoch == epoch and view.report.phase == "switch"
        for view in observed.agents.values()
    )


def _ended(observed: Observed, live: EpochRecord | None) -> tuple[tuple[str, RankExit], ...]:
    """Ranks that held the live epoch until they ended with an error."""
    if live is None:
        return ()
    return tuple(
        (pod.name, gone)
        for pod in observed.pods
        if (report := report_of(observed, pod.name)) is not None
        for gone in report.exits
        if gone.epoch == live.epoch and gone.error
    )


def _holders(observed: Observed, settings: Settings) -> tuple[Holder, ...]:
    found = []
    for pod in observed.pods:
        report = report_of(observed, pod.name)
        ranks = sorted(report.ranks, key=lambda rank: rank.slot) if report else []
        found += [
            Holder(pod.name, pod.node, rank)
            for rank in ranks
            if rank.epoch is not None and rank.phase != "left" and sends_heartbeats(rank, settings)
        ]
    return tuple(found)


def _is_outdated(holder: Holder, live: EpochRecord) -> bool:
    """Whether a halted rank holds only the layout of an epoch that the others are past."""
    rank = holder.rank
    if rank.phase != "halted" or live.epoch in (rank.epoch, rank.also_epoch):
        return False
    takes_part = live.seal is not None and (holder.pod, rank.slot) in live.seal.by_place
    return live.outcome != "open" or not takes_part


def _lost(
    observed: Observed,
    live: EpochRecord | None,
    pending: EpochRecord | None,
    now: float,
    settings: Settings,
) -> tuple[Lost, ...]:
    if live is None:
        return ()
    leavers: frozenset[tuple[str, int]] = frozenset()
    if pending and pending.seal and has_switch_begun(observed, pending.epoch):
        leavers = frozenset((m.pod, m.slot) for m in pending.seal.members if m.rank is None)
    found: dict[Lost, list[Member]] = {}
    for seen in observed.ranked(live):
        member = seen.member
        excused = (member.pod, member.slot) in leavers
        what = _what_happened(observed, seen, live, excused, now, settings)
        if what is not None:
            found.setdefault(what, []).append(member)
    causes_first = sorted(found, key=lambda what: what.reason == "Halted")
    return tuple(
        Lost(what.reason, f"{_ranks_in_words(found[what])} {what}") for what in causes_first
    )


def _ranks_in_words(members: list[Member]) -> str:
    """Ranks on the first node by number, the others by how many they are: a job may have many."""
    node = members[0].node
    here = [str(member.rank) for member in members if member.node == node]
    others = len(members) - len(here)
    more = f" and {others} more" if others else ""
    return f"{'ranks' if len(here) > 1 else 'rank'} {', '.join(here)} on {node}{more}"


def _what_happened(
    observed: Observed,
    seen: MemberView,
    live: EpochRecord,
    excused: bool,
    now: float,
    settings: Settings,
) -> Lost | None:
    """Event of a rank of the live epoch; None if there is none.

    A leaver is excused from ending properly, and its pod too: if the others still needed it, its
    closed connections tell them so.
    """
    member, pod, report, rank = seen.member, seen.pod, seen.report, seen.rank
    if pod is None or pod.phase == "ended":
        if excused:
            return None
        words = f" ({pod.problem})" if pod is not None and pod.problem else ""
        return Lost("PodDied", f"died with the pod{words}")
    if is_silent(observed, member.pod, now, settings):
        silence = f"no answer of the agent for {settings.peer_timeout_s:g} s"
        return Lost("Silent", f"fell silent: {silence}")
    if report is None:
        return None
    if rank is None:
        code = next((e.code for e in reversed(report.exits) if e.slot == member.slot), None)
        if excused and code == 0:
            return None
        return Lost("Exited", ended_with(code) if code is not None else "disappeared")
    return _what_a_rank_says(rank, live, excused, settings)


def _what_a_rank_says(
    rank: RankReport, live: EpochRecord, excused: bool, settings: Settings
) -> Lost | None:
    if not sends_heartbeats(rank, settings):
        return Lost("Silent", f"fell silent: no heartbeat for {settings.peer_timeout_s:g} s")
    if rank.phase == "halted":
        if live.outcome == "open" and live.epoch not in (rank.epoch, rank.also_epoch):
            return None  # it waits for the vote's outcome, or has it: this was reported before
        return Lost("Halted", f"halted: {rank.error}" if rank.error else "halted")
    if excused or (rank.phase in ALIVE and rank.epoch is not None):
        return None
    # Others may hold the epoch already while this one still takes the last steps of its switch.
    if live.outcome == "open" and rank.phase in ("switching", "prepared", "starting"):
        return None
    return Lost("WrongPhase", f"reported the phase {rank.phase}")
