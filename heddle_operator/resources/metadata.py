"""Metadata of every object of a job: its labels, and who owns it.

Invariant: every object belongs to its job by an owner reference, so that deleting the job removes
them all while the operator is down too.
"""

from __future__ import annotations

from typing import Any

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.labels import JOB_LABEL

Body = dict[str, Any]


def owner_reference(job: HeddleJob) -> Body:
    """What makes an object the job's."""
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "name": job.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def metadata(job: HeddleJob, name: str, **labels: str) -> Body:
    """Metadata of an object of the job."""
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": {
            "app.kubernetes.io/name": "heddle",
            "app.kubernetes.io/managed-by": "heddle-operator",
            "app.kubernetes.io/instance": job.name,
            JOB_LABEL: job.name,
            **labels,
        },
        "ownerReferences": [owner_reference(job)],
    }
