"""Which pods go: failed and stuck ones, those on leaving nodes once state has moved, idle ones.

At the end of the job its pods end too, but stay, as those of a Kubernetes Job do: their logs can be
read until the job is deleted.

Invariant: no pod that hosts a rank of the live or the pending epoch is ever deleted here.
"""

from __future__ import annotations

from heddle_operator.rules.candidates import given_back, leaving_nodes, leaving_reasons
from heddle_operator.rules.moves.surplus import held_above_limit
from heddle_operator.state.actions import (
    AdoptPlan,
    DeletePod,
    EndPod,
    RecordEvent,
    RelatedObject,
    RequestPlan,
)
from heddle_operator.state.decision import Decision, sooner
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.reachability import is_silent, report_of
from heddle_operator.state.situation import Situation, View
from heddle_operator.state.snapshot import Observed

ASK_AGAIN_S = 2.0  # a pod that was told to end, and has not: the word may have been lost


def leaving_events(observed: Observed, situation: Situation) -> tuple[RecordEvent, ...]:
    """One Event for each node of the live plan that got its notice, before what follows from it."""
    live = situation.live
    if live is None or live.outcome != "live":
        return ()
    reasons = leaving_reasons(observed, live.hosts)
    return tuple(
        RecordEvent(
            f"leaving-{live.epoch}-{node}",
            "NodeLeaving",
            f"node {node} {reasons[node]}",
            related=RelatedObject("Node", node),
        )
        for node in live.plan.nodes
        if node in reasons
    )


def failed_pods(observed: Observed, situation: Situation) -> tuple[DeletePod, ...]:
    """Pods that ended by themselves; their names are needed again.

    After a loss they stay until it is clear that the job goes on: if not, their logs tell why.
    """
    if situation.lost and situation.pending is None:
        return ()
    return tuple(
        DeletePod(pod.name, "it failed")
        for pod in observed.pods
        if pod.phase == "ended" and not pod.deleting
    )


def stuck_pods(observed: Observed) -> tuple[DeletePod, ...]:
    """Pods that cannot start and that no open epoch waits for: they only hold a place in queues."""
    wanted = {
        node for record in observed.epochs if record.outcome == "open" for node in record.plan.nodes
    }
    return tuple(
        DeletePod(pod.name, f"it cannot start: {pod.problem}")
        for pod in observed.pods
        if pod.phase == "pending" and pod.problem and not pod.deleting and pod.node not in wanted
    )


def give_back(observed: Observed, planned: Decision) -> tuple[DeletePod, ...]:
    """All pods of a job that does not train and cannot start now: others may want their GPUs.

    While a plan is adopted or searched they stay, because it may want them.
    """
    goes_on = any(isinstance(action, AdoptPlan | RequestPlan) for action in planned.actions)
    if goes_on or planned.phase == "Planning":
        return ()
    return tuple(
        DeletePod(pod.name, "the job cannot start, and gives its GPUs back")
        for pod in observed.pods
        if not pod.deleting and pod.phase != "ended"
    )


def silent_pods(view: View) -> tuple[DeletePod, ...]:
    """Pods that do not answer and take part in nothing: others may take their places."""
    situation = view.situation
    hosting = situation.live.hosts if situation.live else frozenset()
    if situation.pending is not None and situation.pending.seal is not None:
        hosting |= {member.pod for member in situation.pending.seal.members}
    return tuple(
        DeletePod(pod.name, "it does not answer")
        for pod in view.observed.pods
        if pod.name not in hosting
        and not pod.deleting
        and is_silent(view.observed, pod.name, view.now, view.settings)
    )


def end_pods(view: View, ended: EpochRecord) -> tuple[tuple[EndPod | DeletePod, ...], float | None]:
    """How every pod ends when the job has, and seconds until the next look.

    A pod that never started has nothing to tell, and one that does not end in time holds GPUs.
    """
    found: list[EndPod | DeletePod] = []
    left_s = (ended.closed_s or view.now) + view.settings.end_timeout_s - view.now
    live = [
        pod
        for pod in view.observed.pods
        if (pod.phase != "ended" or pod.lingers) and not pod.deleting
    ]
    for pod in live:
        if pod.phase == "pending":
            found.append(DeletePod(pod.name, "the job has ended"))
        elif left_s <= 0:
            found.append(DeletePod(pod.name, "the job has ended, and it did not"))
        elif report_of(view.observed, pod.name) is not None:
            found.append(EndPod(pod.name))
    return tuple(found), sooner(left_s, ASK_AGAIN_S) if live and left_s > 0 else None


def release_pods(
    view: View, live: EpochRecord, keeps_plan: bool
) -> tuple[tuple[DeletePod, ...], float | None]:
    """Pods without a rank in the live epoch that are due, and seconds until the next one is.

    Those that must leave are due at once, idle ones only where the plan is kept: another one may
    want them.
    """
    observed = view.observed
    hosting = live.hosts
    holding = {holder.pod for holder in view.situation.holders}
    leaving = leaving_nodes(observed, hosting)
    owed = given_back(observed)
    above = held_above_limit(view.job, observed)
    due: list[DeletePod] = []
    waits_s: list[float] = []
    for pod in observed.pods:
        report = report_of(observed, pod.name)
        if pod.name in hosting or pod.name in holding or pod.deleting or pod.phase == "ended":
            continue
        agent_leaves = report is not None and report.leaving_at_s is not None
        noticed = pod.node in leaving or agent_leaves or bool(pod.notice)
        # One that has yet to start (its image is pulled) is not idle: it joins once it is ready.
        starts = report is None or not report.ready
        wait_s = max(live.closed_s or view.now, pod.created_s) - view.now
        wait_s += view.settings.pod_timeout_s if starts else view.job.spec.elastic.cooldown_seconds
        if pod.name in owed:
            due.append(DeletePod(pod.name, "its GPUs are another job's"))
        elif above > 0 and not starts:
            due.append(DeletePod(pod.name, "its GPUs are above maxGPUs"))
            above -= pod.gpus
        elif noticed or (keeps_plan and wait_s <= 0):
            due.append(
                DeletePod(pod.name, "its state has moved" if noticed else "the plan leaves it idle")
            )
        elif wait_s > 0:
            waits_s.append(wait_s)
    return tuple(due), sooner(*waits_s)
