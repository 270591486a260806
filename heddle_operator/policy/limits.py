"""Limits that a user sets on a job as a whole: how long it may take, how often it may fail.

Invariant: a job that trains never fails by `backoffLimit`; what a job did before its last step in
peace does not count.
Source: Kubernetes' Job (activeDeadlineSeconds, backoffLimit).
"""

from __future__ import annotations

from datetime import datetime

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.policy.gain import failed_in_a_row
from heddle_operator.state.snapshot import EpochRecord, Observed
from planner.wording import counted


def deadline_left_s(job: HeddleJob, observed: Observed, now: float) -> float | None:
    """Seconds until the job's deadline, counted from its creation; None if it has none."""
    created, limit = job.metadata.creation_timestamp, job.spec.deadline_seconds
    if limit is None or not created:
        return None
    created_s = datetime.fromisoformat(created).timestamp() - observed.clock_offset_s
    return created_s + limit - now


def past_deadline(job: HeddleJob, observed: Observed, now: float) -> str:
    """That the deadline has passed, in words; "" if it has not."""
    left = deadline_left_s(job, observed, now)
    if left is None or left > 0:
        return ""
    limit = counted(job.spec.deadline_seconds or 0, "second")
    return f"the job was not complete {limit} after it was created"


def beyond_backoff(job: HeddleJob, epochs: tuple[EpochRecord, ...], step: int | None = None) -> str:
    """That too many attempts failed in a row, with the words of the last; "" if not.

    Args:
        job: supplies `backoffLimit`.
        epochs: all of them.
        step: after a loss, where the job goes on.
    """
    limit = job.spec.backoff_limit
    if limit is None:
        return ""
    failed = failed_in_a_row(epochs, step) + _failed_starts(epochs)
    if failed <= limit:
        return ""
    words = next((record.message for record in reversed(epochs) if record.message), "")
    last = f"; the last: {words}" if words else ""
    return f"{counted(failed, 'attempt')} failed in a row, backoffLimit is {limit}{last}"


def _failed_starts(epochs: tuple[EpochRecord, ...]) -> int:
    """Newest attempts in a row that were given up because pods did not start on some node.

    One that only taught that a node has fewer GPUs is none: the next one asks for fewer.
    """
    failed = 0
    for record in reversed(epochs):
        if record.outcome != "aborted":
            break
        failed += any(failure.gpus < 2 for failure in record.start_failures)
    return failed
