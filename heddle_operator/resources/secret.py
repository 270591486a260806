"""The Secret with a job's bearer token."""

from __future__ import annotations

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.resources.metadata import Body, metadata


def token_name(job: HeddleJob) -> str:
    """Name of the Secret with the job's bearer token."""
    return f"{job.name}-token"


def token_body(job: HeddleJob, token: str) -> Body:
    """The Secret with the job's bearer token."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, token_name(job)),
        "type": "Opaque",
        "immutable": True,
        "stringData": {"token": token},
    }
