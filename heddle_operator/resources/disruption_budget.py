"""The PodDisruptionBudgets of a job: one makes drains wait for its state, one yields pod by pod.

Invariant: a budget counts a pod before it covers it and for as long as it may, so that nothing is
allowed in between while pods change from one budget to the other.
Source: Kubernetes' disruption controller: a budget allows as many evictions as it covers healthy
pods beyond `minAvailable`, and the API server takes off what it allows with each eviction.
"""

from __future__ import annotations

from collections.abc import Mapping

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import EVICTABLE_LABEL, FREELY, JOB_LABEL, ONE_AT_A_TIME
from heddle_operator.resources.metadata import Body, metadata
from heddle_operator.rules.drain import Drain

Mark = str | None  # of a pod: the value of EVICTABLE_LABEL; None: it is protected


def budget_name(job: HeddleJob, covers: Mark = None) -> str:
    """Name of the budget that covers pods with this mark."""
    return job.name if covers is None else f"{job.name}-yield"


def budget_body(job: HeddleJob, least: int, covers: Mark = None) -> Body:
    """The budget that keeps so many of the pods with a mark: if all live ones, none may be evicted.

    An integer `minAvailable`, as `maxUnavailable` needs a scale subresource of the owner.
    """
    marked: Body = {"key": EVICTABLE_LABEL, "operator": "DoesNotExist"}
    if covers is not None:
        marked = {"key": EVICTABLE_LABEL, "operator": "In", "values": [covers]}
    selector = {
        "matchLabels": {JOB_LABEL: job.name, "app.kubernetes.io/component": "worker"},
        "matchExpressions": [marked],
    }
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(job, budget_name(job, covers)),
        "spec": {
            "minAvailable": least,
            "selector": selector,
            # A pod that is not ready holds no drain up: what it protects is elsewhere, or lost.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def mark_of(pod: str, drain: Drain) -> Mark:
    """The mark that a pod is to have."""
    return FREELY if pod in drain.evictable else ONE_AT_A_TIME if pod in drain.yielded else None


def least_available(marks: Mapping[str, Mark], drain: Drain) -> tuple[int, int]:
    """`minAvailable` of the budget that protects and of the one that yields, before marks change.

    Args:
        marks: of the live pods, by name, as they are.
        drain: what evictions may do now.  A pod that was evicted since is still counted: the next
            one has to wait until that is known.
    """
    protected = {pod for pod, mark in marks.items() if mark is None or mark_of(pod, drain) is None}
    yielding = {pod for pod, mark in marks.items() if mark == ONE_AT_A_TIME} | drain.yielded
    return len(protected), len(yielding) - bool(drain.yielded)
