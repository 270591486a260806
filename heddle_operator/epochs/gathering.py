"""From an adopted plan to a sealed epoch: pods are created and awaited, members written down.

Invariant: nobody waits for a pod that must start, if the others suffice; what keeps a pod from
starting is said.
"""

from __future__ import annotations

import math
from dataclasses import replace

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.wording import named
from heddle_operator.epochs.members import (
    choose_store,
    members_of,
    missing_pods,
)
from heddle_operator.epochs.restoring import choose_checkpoint, restored
from heddle_operator.epochs.saving import checkpointing
from heddle_operator.rules.adoption.consider import consider_plan
from heddle_operator.rules.candidates import leaving_nodes, ready_nodes
from heddle_operator.rules.coverage import Survivors
from heddle_operator.rules.emergency import emergency_left_s
from heddle_operator.rules.partitions import needed_holders
from heddle_operator.rules.starts import starting_nodes, troubles
from heddle_operator.state.actions import AdoptPlan, CloseEpoch, RequestPlan, SealEpoch
from heddle_operator.state.decision import Decision, sooner
from heddle_operator.state.epoch_record import EpochRecord, Seal
from heddle_operator.state.reachability import is_silent, report_of
from heddle_operator.state.situation import Holder, Situation, View
from heddle_operator.state.snapshot import MemberView, Observed
from planner.plans.pieces import holders_min
from planner.plans.plan import Plan
from planner.wording import counted
from worker.contract import Member, Restore, Resume


def gather(view: View, record: EpochRecord) -> Decision:
    """Create the pods, wait until their agents are ready, seal."""
    waits = _without_late_node(view, record) or _pods_created(view, record)
    if waits is not None:
        return waits
    holders = needed_holders(view, record)
    members = _ready_members(view, record, holders)
    if isinstance(members, Decision):
        return members
    begin = _beginning(view, record, holders, members)
    if isinstance(begin, Decision):
        return begin
    store = choose_store(members, view.observed)
    if store is None:
        return _waits(f"epoch {record.epoch} waits for a store", 1.0)
    seal = Seal(
        members=members,
        store=store,
        resume=begin if isinstance(begin, Resume) else None,
        sealed_s=view.now,
        known_exits=_known_exits(view.observed, members),
        restore=begin if isinstance(begin, Restore) else None,
        checkpoint=checkpointing(view, record),
    )
    events = (restored(view, record, begin),) if isinstance(begin, Restore) else ()
    return Decision(
        actions=(SealEpoch(record.epoch, seal), *events),
        phase="Preparing",
        message=f"epoch {record.epoch} has all its pods",
    )


def _waits(sentence: str, look_again_s: float) -> Decision:
    return Decision(actions=(), phase="Preparing", message=sentence, look_again_s=look_again_s)


def _without_late_node(view: View, record: EpochRecord) -> Decision | None:
    """Give a recovery up that a node keeps waiting, where the others suffice."""
    late = _late_node(view, record)
    if not late:
        return None
    sentence = f"node {late} must start its pod again, and the others suffice"
    return Decision(
        actions=(CloseEpoch(epoch=record.epoch, outcome="aborted", message=sentence),),
        phase="Recovering",
        message=sentence,
    )


def _pods_created(view: View, record: EpochRecord) -> Decision | None:
    """Create the pods that are missing; one that was refused lately is created later."""
    observed, settings = view.observed, view.settings
    missing = missing_pods(view.job, record, observed)
    if not missing:
        return None
    left_s = {r.name: r.at_s + settings.refusal_pause_s - view.now for r in observed.refusals}
    refused = [left_s[pod.name] for pod in missing if left_s.get(pod.name, 0.0) > 0]
    words = f"epoch {record.epoch} needs {counted(len(missing), 'more pod')}"
    return Decision(
        actions=tuple(pod for pod in missing if left_s.get(pod.name, 0.0) <= 0),
        phase="Preparing",
        message=start_trouble(record, observed) or words,
        look_again_s=sooner(settings.pod_timeout_s, *refused),
    )


def _ready_members(
    view: View, record: EpochRecord, holders: tuple[Holder, ...]
) -> tuple[Member, ...] | Decision:
    """The members of the epoch, once each agent can take part."""
    observed, situation, look_s = view.observed, view.situation, view.settings.peer_timeout_s
    absent = _absent_holders(record, situation)
    if absent:
        return _waits(f"epoch {record.epoch} waits for an answer of pod {absent}", look_s)
    members = members_of(record.plan, observed, holders)
    waiting = sorted({m.pod for m in members or () if not _is_ready(observed.member(m))})
    if members is None or waiting or situation.doubtful:
        awaited = waiting or situation.doubtful
        names = named("pod", awaited) if awaited else "its pods"
        words = f"epoch {record.epoch} waits for {names}"
        return _waits(start_trouble(record, observed) or words, look_s)
    stale = [pod.name for pod in observed.pods if _follows_aborted(observed, pod.name, situation)]
    if stale:
        words = f"epoch {record.epoch} waits until pod {stale[0]} has given up an aborted epoch"
        return _waits(words, 1.0)
    return members


def _beginning(
    view: View, record: EpochRecord, holders: tuple[Holder, ...], members: tuple[Member, ...]
) -> Resume | Restore | Decision | None:
    """Where the ranks begin: at a step of survivors, at a checkpoint, or where they are."""
    if record.reason == "start":
        return choose_checkpoint(view, record, sorted({member.pod for member in members}))
    if record.reason != "loss":
        return None
    survivors = Survivors.of(view.job.workload.model, holders, view.observed)
    problem = survivors.problem()
    if problem:  # what follows from it is the business of recovery
        return Decision(
            actions=(CloseEpoch(epoch=record.epoch, outcome="aborted", message=problem),),
            phase="Recovering",
            message=problem,
        )
    return survivors.resume()


def _late_node(view: View, record: EpochRecord) -> str:
    """A node of a recovery whose pod went after the plan was made; "" if it must be waited for.

    Nobody trains meanwhile, and a new pod may take minutes: its node joins later.
    """
    if record.reason != "loss" or view.situation.live is None:
        return ""
    ready = ready_nodes(view.job, view.observed, view.situation.live.plan, record.composition)
    enough = {node.name for node in ready.nodes}
    for node in record.plan.nodes:
        pods = view.observed.pods_on(node)
        went = any(pod.phase == "ended" or pod.created_s >= record.adopted_s for pod in pods)
        if node not in enough and (went or not pods):
            return node
    return ""


def _absent_holders(record: EpochRecord, situation: Situation) -> str:
    """A pod whose ranks train but cannot be asked: a change without them would lose their state."""
    if record.reason in ("start", "loss") or situation.live is None:
        return ""
    present = {(holder.pod, holder.rank.slot) for holder in situation.holders}
    return next((m.pod for m in situation.live.ranked if (m.pod, m.slot) not in present), "")


def gathering_fault(view: View, record: EpochRecord) -> str:
    """Why an epoch that is not sealed cannot go on, beside pods that fail to start."""
    observed = view.observed
    leaving = leaving_nodes(observed)
    refused_on = {refused.node for refused in observed.refusals}
    for node in record.plan.nodes:
        if node in leaving:
            return f"node {node} is leaving"
        seen, pods = observed.node(node), observed.pods_on(node)
        free = seen.gpus if seen is not None else 0
        needed = record.plan.gpus_reached[node]
        waits = any(pod.phase == "pending" for pod in pods)
        if free < needed and (waits or sum(pod.gpus for pod in pods) < needed):
            return f"node {node} has {counted(free, 'free GPU')} now, the plan needs {needed}"
        missing = needed - sum(pod.gpus for pod in pods)
        refused = _beyond_quota(observed, node, missing) if node in refused_on else ""
        if refused:
            return refused
        for pod in pods:
            if not pod.deleting and is_silent(observed, pod.name, view.now, view.settings):
                return f"pod {pod.name} failed"
    return ""


def _beyond_quota(observed: Observed, node: str, missing: int) -> str:
    """Sentence that quotas leave less than a refused pod of this node needs; "" if it fits."""
    room = observed.headroom
    if missing <= 0:
        return ""
    if room.pods == 0:
        return f"node {node} needs a pod, and {room.why} leaves none"
    if room.gpus is not None and room.gpus < missing:
        left = counted(room.gpus, "GPU")
        return f"node {node} needs {counted(missing, 'more GPU')}, and {room.why} leaves {left}"
    return ""


def start_trouble(record: EpochRecord, observed: Observed) -> str:
    """Reason why pods of an epoch do not start; "" if there is none."""
    found = troubles(record, observed)
    return found[0].sentence if found else ""


def skip_late_nodes(view: View, record: EpochRecord) -> Decision | None:
    """Give an epoch up that waits for pods without which the job could go on at once; else None.

    What is late joins later, as soon as it is ready: its pods stay.
    """
    observed, situation = view.observed, view.situation
    if record.reason == "loss":  # `_late_node` is stricter: nobody trains meanwhile
        return None
    hosts = situation.live.hosts if situation.live else frozenset()
    late = sorted(starting_nodes(observed, hosts) & set(record.plan.nodes))
    wait_s = view.settings.late_s if situation.live else view.settings.start_late_s
    left_s, emergency_s = record.adopted_s + wait_s - view.now, math.inf
    if not late:
        return None
    if record.reason == "drain" and situation.live is not None:
        emergency_s = emergency_left_s(view, situation.live, is_planned=True)
    if min(left_s, emergency_s) > 0:
        return Decision(
            actions=(), phase="Preparing", message="", look_again_s=min(left_s, emergency_s)
        )
    other = consider_plan(replace(view, situation=replace(situation, pending=None)))
    can_go = _can_go(observed, situation)
    for action in other.actions:
        if isinstance(action, AdoptPlan) and set(action.plan.nodes) <= can_go:
            if (
                situation.live
                and emergency_s > 0
                and _lowers_holders(view.job, record.plan, action.plan, observed)
            ):
                continue
            sentence = f"the others go first, without waiting for {named('node', late)}"
            return Decision(
                actions=(CloseEpoch(epoch=record.epoch, outcome="aborted", message=sentence),),
                phase="Preparing",
                message=sentence,
            )
    asked = tuple(action for action in other.actions if isinstance(action, RequestPlan))
    again_s = emergency_s if 0 < emergency_s < math.inf else None
    return Decision(
        actions=asked,
        phase="Preparing",
        message="",
        look_again_s=sooner(other.look_again_s, again_s),
    )


def _lowers_holders(job: HeddleJob, waits: Plan, goes: Plan, observed: Observed) -> bool:
    """Whether the state would live on fewer nodes than `minHolders`, and than if it is waited."""
    wanted = job.spec.elastic.min_holders
    if wanted == 1:
        return False
    known = {r.plan.digest: r.holders_min for r in observed.replies.values() if r.plan is not None}
    kept, held = (
        known.get(plan.digest) or holders_min(job.workload.model, plan) for plan in (waits, goes)
    )
    return held < min(wanted, kept)


def _can_go(observed: Observed, situation: Situation) -> set[str]:
    """Nodes for which a change may be given up that waits for others.

    Those whose pods are ready; and beside a plan that trains, which loses nothing by it, those on
    which no pod was tried yet.
    """
    hosts = situation.live.hosts if situation.live else frozenset()
    starting = starting_nodes(observed, hosts)
    ready = {pod.node for pod in observed.pods} - starting
    if situation.live is None:
        return ready
    failed = {f.node for record in observed.epochs for f in record.start_failures}
    return ready | ({node.name for node in observed.nodes} - starting - failed)


def _is_ready(seen: MemberView) -> bool:
    """Whether its agent can take part; a pod that is being deleted can, to hand its state over.

    Only one that must fork a rank need be ready to: where a rank holds state there is one.
    """
    report, pod = seen.report, seen.pod
    leaves = seen.member.rank is None
    if report is None or pod is None or (pod.deleting and not leaves):
        return False
    return report.ready or seen.member.holds is not None


def _follows_aborted(observed: Observed, pod: str, situation: Situation) -> bool:
    """Whether an agent must give up an epoch first; what ranks hold all the same is live."""
    report = report_of(observed, pod)
    record = observed.record(report.epoch) if report and report.epoch is not None else None
    return (
        record is not None
        and report is not None
        and record != situation.live
        and record.outcome == "aborted"
        and report.phase not in (None, "abort")
    )


def _known_exits(observed: Observed, members: tuple[Member, ...]) -> tuple[tuple[str, int], ...]:
    """Exits of earlier ranks in the members' slots, which say nothing of this epoch."""
    reports = ((member, report_of(observed, member.pod)) for member in members)
    return tuple(
        (member.pod, end.pid)
        for member, report in reports
        if report is not None
        for end in report.exits
        if end.slot == member.slot
    )
