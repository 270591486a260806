"""From a sealed epoch to a live one: prepare, switch, and abort on a failure.

Until ranks hold the new epoch the old one trains on untouched, so every failure here ends in
`aborted` and a new number.
Source: torchft's quorum and commit vote are the model.
"""

from __future__ import annotations

from dataclasses import replace

from heddle_operator.apis.wording import ended_with
from heddle_operator.epochs.gathering import gather, gathering_fault, skip_late_nodes
from heddle_operator.epochs.members import send_directive
from heddle_operator.rules.candidates import leaving_nodes
from heddle_operator.rules.failures import failures_of
from heddle_operator.rules.starts import start_failures
from heddle_operator.state.actions import Action, CloseEpoch, SealEpoch
from heddle_operator.state.decision import Decision, sooner
from heddle_operator.state.epoch_record import EpochRecord, Seal, StartFailure
from heddle_operator.state.progress import (
    idle_s,
    progress_timeout_s,
    stalled,
    unprepared,
    waits_for_a_leaver,
)
from heddle_operator.state.reachability import (
    is_pod_lost,
    report_of,
    sends_heartbeats,
)
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import View, has_switch_begun
from heddle_operator.state.snapshot import MemberView, Observed
from planner.wording import counted, joined
from worker.contract import DirectivePhase, Member, RankReport


def form_epoch(view: View, record: EpochRecord) -> Decision:
    """The next step of a pending epoch."""
    fault = formation_fault(view, record)
    failed: tuple[StartFailure, ...] = ()
    if record.seal is None and not fault:
        failed = start_failures(view, record)
        fault = joined(failure.sentence for failure in failed)
    if fault:
        return Decision(
            actions=(
                CloseEpoch(
                    epoch=record.epoch,
                    outcome="aborted",
                    message=fault,
                    failures=failures_of(record, view.observed),
                    start_failures=failed,
                ),
            ),
            phase="Preparing",
            message=f"epoch {record.epoch} was aborted: {fault}",
        )
    if record.seal is None:
        gathered = gather(view, record)
        if any(isinstance(action, SealEpoch) for action in gathered.actions):
            return gathered
        skipped = skip_late_nodes(view, record)
        if skipped is None:
            return gathered
        if skipped.message:
            return skipped
        again = sooner(gathered.look_again_s, skipped.look_again_s)
        return replace(gathered, actions=(*gathered.actions, *skipped.actions), look_again_s=again)
    return _direct(view, record, record.seal)


def abort_stale(view: View) -> tuple[Action, ...]:
    """Abort directives for agents that still follow an epoch which was given up."""
    observed = view.observed
    stale: dict[int, list[str]] = {}
    for pod in observed.pods:
        report = report_of(observed, pod.name)
        record = observed.record(report.epoch) if report and report.epoch is not None else None
        if (
            report is None
            or record is None
            or record.outcome != "aborted"
            or report.phase == "abort"
        ):
            continue
        if record.seal is not None and record != view.situation.live:
            stale.setdefault(record.epoch, []).append(pod.name)
    return tuple(
        action
        for record in observed.epochs
        for action in send_directive(
            view.job, record, "abort", observed, stale.get(record.epoch, ())
        )
    )


def formation_fault(view: View, record: EpochRecord) -> str:
    """Why a pending epoch cannot go on; "" while it can."""
    observed, situation = view.observed, view.situation
    if record.reason != "loss" and situation.lost:
        return str(situation.lost[0])
    nodes = {node.name for node in observed.nodes}
    gone = [node for node in record.plan.nodes if node not in nodes]
    if gone:
        return f"node {gone[0]} is gone"
    if record.seal is None:
        live = situation.live
        used = leaving_nodes(observed, live.hosts) & set(live.plan.nodes) if live else ()
        if used and record.reason == "join":  # what has a deadline goes first
            return f"node {min(used)} is leaving"
        return gathering_fault(view, record)
    leaving = leaving_nodes(observed, record.hosts)
    going = [node for node in record.plan.nodes if node in leaving]
    switching = has_switch_begun(observed, record.epoch)
    if going and not switching:
        return f"node {going[0]} is leaving"
    for seen in observed.members(record):
        fault = _member_fault(view, record, record.seal, seen, switching)
        if fault:
            return fault
    if switching:
        return waits_for_a_leaver(observed, record, view.settings) or stalled(
            observed, record, view.settings
        )
    if record.seal.store not in _stores(record.seal, observed):
        return f"the store {record.seal.store} is gone"
    return ""


def _member_fault(
    view: View, record: EpochRecord, seal: Seal, seen: MemberView, switching: bool
) -> str:
    settings, member, report, rank = view.settings, seen.member, seen.report, seen.rank
    what = f"rank on GPU {member.gpu} of {member.node}"
    may_leave = switching and member.rank is None
    if is_pod_lost(view.observed, member.pod, view.now, settings):
        return "" if may_leave else f"pod {member.pod} was lost"
    if report is None:
        return ""
    if rank is not None and not sends_heartbeats(rank, settings):
        return f"the {what} has sent no heartbeat for {settings.peer_timeout_s:g} s"
    if not switching and _is_overdue(record, seal, seen, settings):
        part = f" (in part {rank.part or rank.phase})" if rank is not None else ""
        return f"the {what} was not prepared after {settings.prepare_timeout_s:g} s{part}"
    if rank is not None:
        if rank.phase == "left" and may_leave:  # by a vote, of which the others tell later
            return ""
        fault = _rank_fault(record, member, rank, switching, report.epoch)
        return fault and f"the {what} {fault}"
    if member.holds is not None:
        return "" if may_leave else f"the {what} has ended"
    ended = [
        e
        for e in report.exits
        if e.slot == member.slot and (member.pod, e.pid) not in seal.known_exits
    ]
    if not ended:
        return ""
    said = f": {ended[-1].error}" if ended[-1].error else ""
    return f"the {what} {ended_with(ended[-1].code)}{said}"


def _rank_fault(
    record: EpochRecord, member: Member, rank: RankReport, switching: bool, told: int | None
) -> str:
    """Why a member's rank, which lives, cannot go on; its agent was `told` of this epoch."""
    if rank.failed_epoch == record.epoch:
        return f"could not prepare: {rank.error}"
    if rank.phase == "halted" and (
        record.reason != "loss" or (switching and rank.pending_epoch is None)
    ):
        return "has halted"
    if member.holds is not None and rank.epoch is None:
        return "has lost its state"
    return "has left" if rank.phase == "left" and told == record.epoch else ""


def _is_overdue(record: EpochRecord, seal: Seal, seen: MemberView, settings: Settings) -> bool:
    """Whether a member sends heartbeats, and yet gets no nearer to being prepared.

    Of one that trains on, its progress says nothing about the engine that it builds beside.
    """
    if seen.is_prepared(record.epoch):
        return False
    unchanged_s = idle_s(seen, seal.sealed_s)
    if seen.agent and seen.rank is not None and seen.rank.phase in ("training", "switching"):
        unchanged_s = seen.agent.heard_s - seal.sealed_s
    return unchanged_s >= settings.prepare_timeout_s


def _stores(seal: Seal, observed: Observed) -> set[str | None]:
    """Stores of the members; one that does not answer just now has the benefit of the doubt."""
    found: set[str | None] = set()
    for pod in {member.pod for member in seal.members}:
        report = report_of(observed, pod)
        found.add(report.store if report else seal.store)
    return found


def _direct(view: View, record: EpochRecord, seal: Seal) -> Decision:
    """Prepare all members; once all are prepared, switch."""
    observed, settings = view.observed, view.settings
    pods = sorted({member.pod for member in seal.members})
    new = [seen for seen in observed.members(record) if not seen.is_prepared(record.epoch)]
    phase: DirectivePhase = (
        "prepare" if new and not has_switch_begun(observed, record.epoch) else "switch"
    )
    actions = send_directive(
        view.job,
        record,
        phase,
        observed,
        [pod for pod in pods if _wants(observed, pod, record, phase)],
    )
    if phase == "switch":
        return Decision(
            actions=actions,
            phase="Switching",
            message=f"the job switches to epoch {record.epoch}",
            look_again_s=progress_timeout_s(record, settings),
        )
    refusals = [f"pod {pod} refuses: {why}" for pod in pods if (why := _refusal(observed, pod))]
    if refusals:
        return Decision(
            actions=actions,
            phase="Preparing",
            message=refusals[0],
            look_again_s=settings.peer_timeout_s,
        )
    waits_s = view.now - seal.sealed_s
    awaited = unprepared(observed, record) if waits_s >= settings.peer_timeout_s else ""
    return Decision(
        actions=actions,
        phase="Preparing",
        message=f"epoch {record.epoch} is being prepared: {len(seal.members) - len(new)} of "
        f"{counted(len(seal.members), 'rank')} ready"
        + (f"; it waits for {awaited}" if awaited else ""),
        look_again_s=settings.peer_timeout_s,
        slow=f"epoch {record.epoch} waits for {awaited}" if awaited else "",
    )


def _refusal(observed: Observed, pod: str) -> str:
    """Why an agent refused the newest directive; "" if it did not."""
    agent = observed.agents.get(pod)
    return agent.refusal if agent is not None else ""


def _wants(observed: Observed, pod: str, record: EpochRecord, phase: DirectivePhase) -> bool:
    """Whether an agent has not accepted the directive of a phase yet."""
    report = report_of(observed, pod)
    if report is None:
        return False
    if report.epoch != record.epoch:
        return report.epoch is None or report.epoch < record.epoch
    return phase == "switch" and report.phase == "prepare"
