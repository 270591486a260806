"""The PodDisruptionBudget that makes a drain wait for a job's state."""

from __future__ import annotations

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import EVICTABLE_LABEL, JOB_LABEL
from heddle_operator.resources.metadata import Body, metadata


def budget_name(job: HeddleJob) -> str:
    """Name of the job's PodDisruptionBudget."""
    return job.name


def budget_body(job: HeddleJob, live_pods: int) -> Body:
    """The budget that makes a drain wait: no live pod of the job may be evicted.

    An integer `minAvailable`, as `maxUnavailable` needs a scale subresource of the owner.
    """
    selector = {
        "matchLabels": {JOB_LABEL: job.name, "app.kubernetes.io/component": "worker"},
        "matchExpressions": [{"key": EVICTABLE_LABEL, "operator": "DoesNotExist"}],
    }
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(job, budget_name(job)),
        "spec": {"minAvailable": live_pods, "selector": selector},
    }
