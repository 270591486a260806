"""Members that answer, are silent, or are lost: agents by reports, ranks by heartbeats.

Slow is not lost: a rank that sends heartbeats is there, however long it computes.  A member that is
silent for `spec.elastic.peerTimeoutSeconds` is lost, whatever else may be known of it.
Invariant: what an agent said last is taken as the present only while it answers.
"""

from __future__ import annotations

from heddle_operator.state.settings import Settings
from heddle_operator.state.snapshot import Observed, ObservedPod
from worker.contract import RankReport, Report


def report_of(observed: Observed, pod: str) -> Report | None:
    """The report of a pod whose agent answers; None otherwise."""
    return observed.reports.get(pod)


def sends_heartbeats(rank: RankReport, settings: Settings) -> bool:
    """Whether a rank's newest heartbeat is young enough."""
    return rank.beat_age_s <= settings.peer_timeout_s


def is_silent(observed: Observed, name: str, now: float, settings: Settings) -> bool:
    """Whether the agent of a running pod has not answered for the peer time-out.

    One whose answers are not understood is not silent: its ranks train on.
    """
    view = observed.agents.get(name)
    return view is not None and not view.problem and _is_overdue(observed, name, now, settings)


def _is_overdue(observed: Observed, name: str, now: float, settings: Settings) -> bool:
    """Whether there was no report for the peer time-out, from an agent that does not start."""
    pod, view = observed.pod(name), observed.agents.get(name)
    if pod is None or pod.phase != "running" or view is None or view.unreachable_since_s is None:
        return False
    if is_starting(observed, name, now, settings):
        return False
    return now - view.unreachable_since_s >= settings.peer_timeout_s


def is_starting(observed: Observed, name: str, now: float, settings: Settings) -> bool:
    """Whether the agent never answered, and may still start.

    Its container runs before it listens: image and imports take their time.
    """
    pod, view = observed.pod(name), observed.agents.get(name)
    if pod is None or (view is not None and view.report is not None) or _was_ready(observed, pod):
        return False
    return now - pod.created_s < settings.pod_timeout_s


def is_pod_lost(observed: Observed, name: str, now: float, settings: Settings) -> bool:
    """Whether a pod is gone, has ended, or can be asked nothing for too long."""
    pod = observed.pod(name)
    return pod is None or pod.phase == "ended" or _is_overdue(observed, name, now, settings)


def is_doubtful(observed: Observed, name: str, now: float, settings: Settings) -> bool:
    """Whether an agent does not answer, and may yet do so before it is lost.

    One that only starts holds no state, and nobody waits for it.
    """
    pod, view = observed.pod(name), observed.agents.get(name)
    if pod is None or view is None or view.unreachable_since_s is None:
        return False
    if is_pod_lost(observed, name, now, settings):
        return False
    return view.report is not None or _was_ready(observed, pod)


def doubt_left_s(observed: Observed, now: float, settings: Settings) -> float | None:
    """Seconds until the next agent that does not answer is lost; None if all answer."""
    left = [
        view.unreachable_since_s + settings.peer_timeout_s - now
        for name, view in observed.agents.items()
        if view.unreachable_since_s is not None and is_doubtful(observed, name, now, settings)
    ]
    return max(0.0, min(left)) if left else None


def _was_ready(observed: Observed, pod: ObservedPod) -> bool:
    """Whether an epoch was sealed with this very pod: then its agent answered before."""
    return any(
        record.seal is not None
        and record.seal.sealed_s >= pod.created_s
        and pod.name in record.seal.pods
        for record in observed.epochs
    )
