"""From an adopted plan to a live epoch: pods, seal, prepare, switch, and abort on a failure.

Until ranks hold the new epoch the old one trains on untouched, so every failure here ends in
`aborted` and a new number. Source: design, section 4 "Epochs"; torchft's quorum and commit vote are
the model.
"""

from __future__ import annotations

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.wording import ended_with, named
from heddle_operator.policy.candidates import leaving_nodes
from heddle_operator.policy.coverage import NO_COMMON_STEP, lost_piece
from heddle_operator.policy.failures import failures_of
from heddle_operator.policy.partitions import needed_holders
from heddle_operator.rollout.members import (
    choose_store,
    directive_of,
    gpus_needed,
    members_of,
    missing_pods,
    pods_of_node,
)
from heddle_operator.state.actions import Action, CloseEpoch, SealEpoch, SendDirective
from heddle_operator.state.decision import Decision, sooner
from heddle_operator.state.progress import hang, idle_s, progress_timeout_s, unprepared
from heddle_operator.state.reachability import (
    is_pod_lost,
    is_silent,
    rank_at,
    report_of,
    sends_heartbeats,
)
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import Situation, has_switch_begun
from heddle_operator.state.snapshot import EpochRecord, Observed, Seal
from planner.wording import counted
from worker.contract import (
    Directive,
    DirectivePhase,
    Member,
    RankExit,
    RankReport,
    Resume,
    resume_of,
)


def form_epoch(
    job: HeddleJob,
    record: EpochRecord,
    observed: Observed,
    now: float,
    where: Situation,
    settings: Settings,
) -> Decision:
    """The next step of a pending epoch."""
    fault = formation_fault(record, observed, now, where, settings)
    if fault:
        return Decision(
            (CloseEpoch(record.epoch, "aborted", fault, failures_of(record, observed)),),
            "Preparing",
            f"epoch {record.epoch} was aborted: {fault}",
        )
    if record.seal is None:
        return _gather(job, record, observed, now, where, settings)
    return _direct(job, record, record.seal, observed, now, settings)


def abort_stale(job: HeddleJob, observed: Observed, where: Situation) -> tuple[Action, ...]:
    """Abort directives for agents that still follow an epoch which was given up."""
    actions = []
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
        if record.seal is not None and record != where.live:
            actions.append(SendDirective(pod.name, directive_of(job, record, "abort", observed)))
    return tuple(actions)


def formation_fault(
    record: EpochRecord, observed: Observed, now: float, where: Situation, settings: Settings
) -> str:
    """Why a pending epoch cannot go on; "" while it can."""
    if record.reason != "loss" and where.lost:
        return where.lost[0]
    nodes = {node.name for node in observed.nodes}
    gone = [node for node in record.plan.nodes if node not in nodes]
    if gone:
        return f"node {gone[0]} is gone"
    if record.seal is None:
        return _gathering_fault(record, observed, now, settings)
    leaving = leaving_nodes(observed, record.hosts)
    going = [node for node in record.plan.nodes if node in leaving]
    switching = has_switch_begun(observed, record.epoch)
    if going and not switching:
        return f"node {going[0]} is leaving"
    for member in record.seal.members:
        fault = _member_fault(record, record.seal, member, observed, now, switching, settings)
        if fault:
            return fault
    hangs = hang(observed, record, settings) if switching else ""
    if hangs:
        return hangs
    if not switching and record.seal.store not in _stores(record.seal, observed):
        return f"the store {record.seal.store} is gone"
    return ""


def _gathering_fault(
    record: EpochRecord, observed: Observed, now: float, settings: Settings
) -> str:
    leaving = leaving_nodes(observed)
    for node in record.plan.nodes:
        if node in leaving:
            return f"node {node} is leaving"
        fault = _start_fault(record, observed, node, now, settings)
        if fault:
            return fault
        for pod in pods_of_node(observed, node):
            is_new = pod.created_s >= record.adopted_s
            is_lost = is_new and is_pod_lost(observed, pod.name, now, settings)
            if is_lost or (not pod.deleting and is_silent(observed, pod.name, now, settings)):
                return f"pod {pod.name} failed" + (f": {pod.problem}" if pod.problem else "")
            report = report_of(observed, pod.name)
            if now - max(pod.created_s, record.adopted_s) > settings.pod_timeout_s and not (
                report and report.ready
            ):
                return f"pod {pod.name} was not ready after {settings.pod_timeout_s:g} s"
    return ""


def _start_fault(
    record: EpochRecord, observed: Observed, node: str, now: float, settings: Settings
) -> str:
    """What keeps a node's pods from starting, once it has been waited for long enough."""
    free = next(seen.gpus for seen in observed.nodes if seen.name == node)
    pods = pods_of_node(observed, node)
    starting = [pod for pod in pods if pod.phase == "pending"]
    needed = gpus_needed(record.plan, node)
    if free < needed and (starting or sum(pod.gpus for pod in pods) < needed):
        return f"node {node} has {counted(free, 'free GPU')} now, the plan needs {needed}"
    trouble = start_trouble(record, observed, node)
    since = max([record.adopted_s, *(pod.created_s for pod in starting)])
    return trouble if now - since > settings.pod_problem_s else ""


def start_trouble(record: EpochRecord, observed: Observed, node: str = "") -> str:
    """What keeps pods of an epoch (or of one node of it) from starting, in words; "" if nothing."""
    nodes = {node} if node else set(record.plan.nodes)
    for pod in observed.pods:
        view = observed.agents.get(pod.name)
        problem = pod.problem or (view.problem if view else "")
        if pod.node in nodes and problem:
            return f"pod {pod.name}: {problem}"
    names = {pod.name for pod in observed.pods}
    for refused in observed.refusals:
        if refused.name not in names:
            return f"pod {refused.name} is refused: {refused.message}"
    return ""


def _member_fault(
    record: EpochRecord,
    seal: Seal,
    member: Member,
    observed: Observed,
    now: float,
    switching: bool,
    settings: Settings,
) -> str:
    what = f"rank on GPU {member.gpu} of {member.node}"
    may_leave = switching and member.rank is None
    if is_pod_lost(observed, member.pod, now, settings):
        return "" if may_leave else f"pod {member.pod} was lost"
    report = report_of(observed, member.pod)
    if report is None:
        return ""
    rank = rank_at(observed, member.pod, member.slot)
    if rank is not None and not sends_heartbeats(rank, settings):
        return f"the {what} has sent no heartbeat for {settings.peer_timeout_s:g} s"
    if not switching and _is_overdue(record, seal, member, observed, settings):
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
    return f"the {what} {ended_with(ended[-1].code)}" if ended else ""


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


def _is_overdue(
    record: EpochRecord, seal: Seal, member: Member, observed: Observed, settings: Settings
) -> bool:
    """Whether a member sends heartbeats, and yet gets no nearer to being prepared.

    Of one that trains on, its progress says nothing about the engine that it builds beside.
    """
    if _is_prepared(observed, member, record.epoch):
        return False
    rank, view = rank_at(observed, member.pod, member.slot), observed.agents[member.pod]
    idle = idle_s(observed, member, seal.sealed_s)
    if rank is not None and rank.phase in ("training", "switching"):
        idle = view.heard_s - seal.sealed_s
    return idle >= settings.prepare_timeout_s


def _stores(seal: Seal, observed: Observed) -> set[str | None]:
    """Stores of the members; one that does not answer just now has the benefit of the doubt."""
    found: set[str | None] = set()
    for pod in {member.pod for member in seal.members}:
        report = report_of(observed, pod)
        found.add(report.store if report else seal.store)
    return found


def _gather(
    job: HeddleJob,
    record: EpochRecord,
    observed: Observed,
    now: float,
    where: Situation,
    settings: Settings,
) -> Decision:
    """Create the pods, wait until their agents are ready, seal."""
    created = missing_pods(job, record, observed)
    trouble = start_trouble(record, observed)
    if created:
        refused = {r.name: r.at_s + settings.refusal_pause_s - now for r in observed.refusals}
        waits = [refused[pod.name] for pod in created if refused.get(pod.name, 0.0) > 0]
        return Decision(
            tuple(pod for pod in created if refused.get(pod.name, 0.0) <= 0),
            "Preparing",
            trouble or f"epoch {record.epoch} needs {counted(len(created), 'more pod')}",
            sooner(settings.pod_timeout_s, *waits),
        )
    holders = needed_holders(job, observed, where, record)
    absent = _absent_holders(record, where)
    if absent:
        reason = f"epoch {record.epoch} waits for an answer of pod {absent}"
        return Decision((), "Preparing", reason, settings.peer_timeout_s)
    members = members_of(record.plan, observed, holders)
    waiting = sorted({m.pod for m in members or () if not _is_ready(observed, m)})
    if members is None or waiting or where.doubtful:
        awaited = waiting or where.doubtful
        names = named("pod", awaited) if awaited else "its pods"
        reason = trouble or f"epoch {record.epoch} waits for {names}"
        return Decision((), "Preparing", reason, settings.peer_timeout_s)
    stale = [pod.name for pod in observed.pods if _follows_aborted(observed, pod.name, where)]
    if stale:
        reason = f"epoch {record.epoch} waits until pod {stale[0]} has given up an aborted epoch"
        return Decision((), "Preparing", reason, 1.0)
    resume: Resume | None = None
    if record.reason == "loss":
        resume = resume_of([holder.rank for holder in holders])
        problem = "" if resume else NO_COMMON_STEP
        problem = lost_piece(job.workload.model, holders, observed) or problem
        if problem:  # what follows from it is the business of recovery
            return Decision((CloseEpoch(record.epoch, "aborted", problem),), "Recovering", problem)
    store = choose_store(members, observed)
    if store is None:
        return Decision((), "Preparing", f"epoch {record.epoch} waits for a store", 1.0)
    exits = tuple(
        (m.pod, e.pid) for m in members for e in _exits(observed, m.pod) if e.slot == m.slot
    )
    seal = Seal(members, store, resume, now, exits)
    return Decision(
        (SealEpoch(record.epoch, seal),),
        "Preparing",
        f"epoch {record.epoch} has all its pods",
    )


def _absent_holders(record: EpochRecord, where: Situation) -> str:
    """A pod whose ranks train but cannot be asked: a change without them would lose their state."""
    if record.reason in ("start", "loss") or where.live is None:
        return ""
    present = {(holder.pod, holder.rank.slot) for holder in where.holders}
    return next((m.pod for m in where.live.ranked if (m.pod, m.slot) not in present), "")


def _direct(
    job: HeddleJob,
    record: EpochRecord,
    seal: Seal,
    observed: Observed,
    now: float,
    settings: Settings,
) -> Decision:
    """Prepare all members; once all are prepared, switch."""
    pods = sorted({member.pod for member in seal.members})
    new = [m for m in seal.members if not _is_prepared(observed, m, record.epoch)]
    phase: DirectivePhase = (
        "prepare" if new and not has_switch_begun(observed, record.epoch) else "switch"
    )
    directive = directive_of(job, record, phase, observed)
    actions = tuple(
        SendDirective(pod, directive) for pod in pods if _wants(observed, pod, directive)
    )
    if phase == "switch":
        return Decision(
            actions,
            "Switching",
            f"the job switches to epoch {record.epoch}",
            progress_timeout_s(record, settings),
        )
    refusals = [f"pod {pod} refuses: {why}" for pod in pods if (why := _refusal(observed, pod))]
    if refusals:
        return Decision(actions, "Preparing", refusals[0], settings.peer_timeout_s)
    waits_s = now - seal.sealed_s
    awaited = unprepared(observed, record) if waits_s >= settings.peer_timeout_s else ""
    return Decision(
        actions,
        "Preparing",
        f"epoch {record.epoch} is being prepared: {len(seal.members) - len(new)} of "
        f"{counted(len(seal.members), 'rank')} ready"
        + (f"; it waits for {awaited}" if awaited else ""),
        settings.peer_timeout_s,
        slow=f"epoch {record.epoch} waits for {awaited}" if awaited else "",
    )


def _refusal(observed: Observed, pod: str) -> str:
    """Why an agent refused the newest directive; "" if it did not."""
    view = observed.agents.get(pod)
    return view.refusal if view is not None else ""


def _wants(observed: Observed, pod: str, directive: Directive) -> bool:
    """Whether an agent has not accepted this directive yet."""
    report = report_of(observed, pod)
    if report is None:
        return False
    if report.epoch != directive.epoch:
        return report.epoch is None or report.epoch < directive.epoch
    return directive.phase == "switch" and report.phase == "prepare"


def _is_prepared(observed: Observed, member: Member, epoch: int) -> bool:
    rank = rank_at(observed, member.pod, member.slot)
    return rank is not None and rank.pending_epoch == epoch


def _is_ready(observed: Observed, member: Member) -> bool:
    """Whether its agent can take part; a pod that is being deleted can, to hand its state over."""
    report, pod = report_of(observed, member.pod), observed.pod(member.pod)
    leaves = member.rank is None
    return report is not None and report.ready and pod is not None and (leaves or not pod.deleting)


def _follows_aborted(observed: Observed, pod: str, where: Situation) -> bool:
    """Whether an agent must give up an epoch first; what ranks hold all the same is live."""
    report = report_of(observed, pod)
    record = observed.record(report.epoch) if report and report.epoch is not None else None
    return (
        record is not None
        and report is not None
        and record != where.live
        and record.outcome == "aborted"
        and report.phase not in (None, "abort")
    )


def _exits(observed: Observed, pod: str) -> tuple[RankExit, ...]:
    report = report_of(observed, pod)
    return report.exits if report else ()
