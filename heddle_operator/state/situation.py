"""Where the job stands, read from what its ranks hold and what is on record.

Three questions: which epoch is live, which one is pending, and which of the live epoch's ranks are
lost.
Invariant: what ranks hold counts more than what is on record: a rank that holds the state of epoch
e proves that e was voted for.
"""

from __future__ import annotations

from dataclasses import dataclass

from heddle_operator.apis.wording import ended_with
from heddle_operator.state.settings import Settings
from heddle_operator.state.snapshot import AgentView, EpochRecord, Observed, ObservedPod
from worker.contract import Member, RankReport, Report

ALIVE = ("training", "switching", "done")


@dataclass(frozen=True, slots=True)
class Holder:
    """A reachable rank process that holds state."""

    pod: str
    node: str
    rank: RankReport


@dataclass(frozen=True, slots=True)
class Situation:
    """Where the job stands.

    Attributes:
        live: the newest epoch that any rank holds, or that is on record as live; None before the
            first.
        pending: an open epoch after the live one.
        holders: reachable ranks with state, by pod and slot.
        lost: what happened to ranks of the live epoch that neither train nor can; empty while all
            is well.
        doubtful: pods whose agents have not answered for less than the grace.
        ever_live: some epoch is on record as live.
        outdated: ranks that halted with the state of a past epoch, which the others have left: they
            were cut off, and come back too late.
    """

    live: EpochRecord | None
    pending: EpochRecord | None
    holders: tuple[Holder, ...]
    lost: tuple[str, ...]
    doubtful: tuple[str, ...]
    ever_live: bool
    outdated: tuple[Holder, ...] = ()


def situation(observed: Observed, now: float, settings: Settings) -> Situation:
    """Read the situation from a snapshot."""
    everybody = _holders(observed)
    on_record = [
        r.epoch
        for r in observed.epochs
        if r.outcome in ("live", "complete", "failed") and r.closed_s is not None
    ]
    lived = [r.epoch for r in observed.epochs if r.outcome == "live"]
    held = [holder.rank.epoch for holder in everybody if holder.rank.epoch is not None]
    newest = max(on_record + held, default=0)
    live = observed.record(newest)
    outdated = tuple(holder for holder in everybody if live and _is_outdated(holder, live))
    pending = next((r for r in observed.epochs if r.epoch > newest and r.outcome == "open"), None)
    return Situation(
        live,
        pending,
        tuple(holder for holder in everybody if holder not in outdated),
        _lost(observed, live, pending) or _vanished(observed, live, now, settings),
        tuple(
            name
            for name in sorted(observed.agents)
            if _is_doubtful(observed, name, live, now, settings)
        ),
        bool(lived),
        outdated,
    )


def report_of(observed: Observed, pod: str) -> Report | None:
    """The report of a pod whose agent answers; None otherwise."""
    view = observed.agents.get(pod)
    return view.report if view and is_reachable(observed.pod(pod), view) else None


def rank_at(observed: Observed, pod: str, slot: int) -> RankReport | None:
    """The rank process on a GPU of a pod, as its reachable agent says."""
    report = report_of(observed, pod)
    return next((rank for rank in report.ranks if rank.slot == slot), None) if report else None


def is_pod_lost(observed: Observed, name: str, now: float, settings: Settings) -> bool:
    """Whether a pod is gone, ended, or has not answered for longer than the grace.

    An agent that never answered may still be starting: its container runs before it listens.
    """
    pod = observed.pod(name)
    if pod is None or pod.phase == "ended":
        return True
    view = observed.agents.get(name)
    if view is None or view.unreachable_since_s is None:
        return False
    if view.report is None and now - pod.created_s < settings.pod_timeout_s:
        return False
    return now - view.unreachable_since_s >= settings.unreachable_grace_s


def has_switch_begun(observed: Observed, epoch: int) -> bool:
    """Whether any agent was told to switch to the epoch."""
    return any(
        view.report is not None and view.report.epoch == epoch and view.report.phase == "switch"
        for view in observed.agents.values()
    )


def _is_doubtful(
    observed: Observed, name: str, live: EpochRecord | None, now: float, settings: Settings
) -> bool:
    """Whether an agent may yet answer, and matters: a pod that only starts holds no state."""
    view = observed.agents[name]
    if view.unreachable_since_s is None or is_pod_lost(observed, name, now, settings):
        return False
    hosts = (
        live is not None and live.seal is not None and name in {m.pod for m in live.seal.members}
    )
    silent_s = now - view.unreachable_since_s
    return view.report is not None or (hosts and silent_s < settings.unreachable_grace_s)


def _holders(observed: Observed) -> tuple[Holder, ...]:
    found = []
    for pod in observed.pods:
        report = report_of(observed, pod.name)
        ranks = sorted(report.ranks, key=lambda rank: rank.slot) if report else []
        found += [
            Holder(pod.name, pod.node, rank)
            for rank in ranks
            if rank.epoch is not None and rank.phase != "left"
        ]
    return tuple(found)


def _is_outdated(holder: Holder, live: EpochRecord) -> bool:
    """Whether a halted rank holds only the layout of an epoch that the others are past."""
    rank = holder.rank
    if rank.phase != "halted" or live.epoch in (rank.epoch, rank.also_epoch):
        return False
    members = live.seal.members if live.seal else ()
    takes_part = any((m.pod, m.slot) == (holder.pod, rank.slot) for m in members)
    return live.outcome != "open" or not takes_part


def _lost(
    observed: Observed, live: EpochRecord | None, pending: EpochRecord | None
) -> tuple[str, ...]:
    if live is None:
        return ()
    leavers: frozenset[tuple[str, int]] = frozenset()
    if pending and pending.seal and has_switch_begun(observed, pending.epoch):
        leavers = frozenset((m.pod, m.slot) for m in pending.seal.members if m.rank is None)
    found: dict[str, list[Member]] = {}
    for member in live.ranked:
        excused = (member.pod, member.slot) in leavers
        what = _what_happened(observed, member, live, excused)
        if what:
            found.setdefault(what, []).append(member)
    causes_first = sorted(found, key=lambda what: what.startswith("halted"))
    return tuple(f"{_ranks_in_words(found[what])} {what}" for what in causes_first)


def _ranks_in_words(members: list[Member]) -> str:
    """Those on the first node by number, the others by how many they are: a job may have many."""
    node = members[0].node
    here = [str(member.rank) for member in members if member.node == node]
    others = len(members) - len(here)
    more = f" and {others} more" if others else ""
    return f"{'ranks' if len(here) > 1 else 'rank'} {', '.join(here)} on {node}{more}"


def _vanished(
    observed: Observed, live: EpochRecord | None, now: float, settings: Settings
) -> tuple[str, ...]:
    """What happened if nobody is left who could tell: all ranks are silent, their nodes not ready.

    While any rank answers, it is the ranks that tell of a loss: they halt when a peer dies.
    """
    members = live.ranked if live else ()
    ready = {node.name for node in observed.nodes if node.is_ready}
    found = []
    for member in members:
        view = observed.agents.get(member.pod)
        silent = view is None or view.report is None or view.unreachable_since_s is not None
        if not silent or member.node in ready:
            return ()
        if not is_pod_lost(observed, member.pod, now, settings):
            return ()
        found.append(f"rank {member.rank} on {member.node} died with its node")
    return tuple(found)


def _what_happened(observed: Observed, member: Member, live: EpochRecord, excused: bool) -> str:
    """What happened to a rank of the live epoch; "" if nothing.

    A leaver is excused from ending properly.  An agent that does not answer proves nothing: while
    its ranks live the others train on, and when they die the others halt.
    """
    pod = observed.pod(member.pod)
    if pod is None or pod.phase == "ended":
        words = f" ({pod.problem})" if pod is not None and pod.problem else ""
        return f"died with the pod{words}"
    report = report_of(observed, member.pod)
    if report is None:
        return ""
    rank = rank_at(observed, member.pod, member.slot)
    if rank is None:
        code = next((e.code for e in reversed(report.exits) if e.slot == member.slot), None)
        return (
            "" if excused and code == 0 else ended_with(code) if code is not None else "disappeared"
        )
    if rank.phase == "halted":
        return f"halted: {rank.error}" if rank.error else "halted"
    if excused or (rank.phase in ALIVE and rank.epoch is not None):
        return ""
    # Others may hold the epoch already while this one still takes the last steps of its switch.
    return (
        ""
        if live.outcome == "open" and rank.phase in ("switching", "prepared", "starting")
        else f"reported the phase {rank.phase}"
    )


def is_reachable(pod: ObservedPod | None, view: AgentView | None) -> bool:
    """Whether what the agent last said can be taken as the present."""
    return (
        pod is not None
        and pod.phase == "running"
        and view is not None
        and view.unreachable_since_s is None
    )
