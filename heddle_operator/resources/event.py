"""The Event that tells what the operator decided about a job."""

from __future__ import annotations

import hashlib

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.wording import shortened
from heddle_operator.resources.metadata import Body
from heddle_operator.state.actions import EventReason, RecordEvent

# What went as it should; any other reason is a warning.
_NORMAL: frozenset[EventReason] = frozenset(
    {
        "Complete",
        "NodeLeaving",
        "PlanKept",
        "PlanRecommended",
        "PlanSelected",
        "ReconfigurationSucceeded",
        "Restored",
        "Suspended",
    }
)
NOTE_BYTES = 1024  # Kubernetes counts bytes, not letters
REPORTER_LETTERS = 128  # of `reportingInstance`, by Kubernetes' validation


def event_body(
    job: HeddleJob, action: RecordEvent, now_text: str, reporter: str = "heddle-operator"
) -> Body:
    """An Event about the job, named after its key: saying it twice says it once.

    Args:
        job: that it is about.
        action: what it tells.
        now_text: the time, as a MicroTime.
        reporter: the identity of the operator that says it.
    """
    digest = hashlib.blake2b(f"{job.metadata.uid}/{action.key}".encode(), digest_size=8).hexdigest()
    related = action.related
    body: Body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{digest}", "namespace": job.metadata.namespace},
        "eventTime": now_text,
        "reportingController": "heddle.dev/operator",
        "reportingInstance": reporter[:REPORTER_LETTERS],
        "action": action.reason,
        "reason": action.reason,
        "regarding": {
            "apiVersion": job.api_version,
            "kind": job.kind,
            "name": job.name,
            "namespace": job.metadata.namespace,
            "uid": job.metadata.uid,
        },
        "note": shortened(action.message, NOTE_BYTES),
        "type": "Normal" if action.reason in _NORMAL else "Warning",
    }
    if related is not None:
        namespace = {"namespace": job.metadata.namespace} if related.kind == "Pod" else {}
        body["related"] = {
            "apiVersion": "v1",
            "kind": related.kind,
            "name": related.name,
            **namespace,
        }
    return body
