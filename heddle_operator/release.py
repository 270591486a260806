"""Which pods go: failed and stuck ones, those on leaving nodes once state has moved, idle ones.

Invariant: no pod that hosts a rank of the live or the pending epoch is ever deleted here.
"""

from __future__ import annotations

from heddle_operator.actions import DeletePod
from heddle_operator.api import HeddleJob
from heddle_operator.decision import sooner
from heddle_operator.eligibility import leaving_nodes
from heddle_operator.situation import Situation, report_of
from heddle_operator.snapshot import EpochRecord, Observed


def failed_pods(observed: Observed) -> tuple[DeletePod, ...]:
    """Pods that ended by themselves; their names are needed again."""
    return tuple(
        DeletePod(pod.name, "it failed")
        for pod in observed.pods
        if pod.phase == "failed" and not pod.deleting
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


def all_pods(observed: Observed, why: str) -> tuple[DeletePod, ...]:
    """Every pod, at the end of the job."""
    return tuple(DeletePod(pod.name, why) for pod in observed.pods if not pod.deleting)


def release_pods(
    job: HeddleJob, live: EpochRecord, where: Situation, observed: Observed, now: float
) -> tuple[tuple[DeletePod, ...], float | None]:
    """Pods without a rank in the live epoch that are due, and seconds until the next one is."""
    hosting = {m.pod for m in live.seal.members if m.rank is not None} if live.seal else set()
    holding = {holder.pod for holder in where.holders}
    leaving = leaving_nodes(observed, hosting)
    due: list[DeletePod] = []
    waits: list[float] = []
    for pod in observed.pods:
        report = report_of(observed, pod.name)
        if pod.name in hosting or pod.name in holding or pod.deleting or pod.phase == "failed":
            continue
        told = report is not None and report.leaving_at_s is not None
        noticed = pod.node in leaving or told or bool(pod.notice)
        since = max(live.closed_s or now, pod.created_s)
        wait = since + job.spec.elastic.cooldown_seconds - now
        if noticed or wait <= 0:
            due.append(
                DeletePod(pod.name, "its state has moved" if noticed else "the plan leaves it idle")
            )
        else:
            waits.append(wait)
    return tuple(due), sooner(*waits)
