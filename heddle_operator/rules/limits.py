"""Limits that a user sets on a job as a whole: how long it may take, how often it may fail.

Invariant: a job that trains never fails by `backoffLimit`; what a job did before its last step in
peace does not count.
Source: Kubernetes' Job (activeDeadlineSeconds, backoffLimit).
"""

from __future__ import annotations

from itertools import takewhile

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.times import wall_s
from heddle_operator.rules.gain import failed_in_a_row, failed_records
from heddle_operator.state.epoch_record import EpochRecord, suspended_s
from heddle_operator.state.situation import View
from planner.wording import counted


def deadline_left_s(view: View) -> float | None:
    """Seconds until the job's deadline, counted from its creation.

    None if it has none, or while the job is suspended: no time brings it nearer.
    """
    created, limit = view.job.metadata.creation_timestamp, view.job.spec.deadline_seconds
    if limit is None or not created or (view.job.spec.suspend and view.situation.live is None):
        return None
    created_s = wall_s(created) - view.observed.clock_offset_s
    return created_s + limit + suspended_s(view.observed.epochs, view.now) - view.now


def past_deadline(view: View) -> str:
    """Sentence that the deadline has passed; "" if it has not."""
    left_s = deadline_left_s(view)
    if left_s is None or left_s > 0:
        return ""
    limit = counted(view.job.spec.deadline_seconds or 0, "second")
    return f"the job was not complete {limit} after it was created"


def beyond_backoff(job: HeddleJob, epochs: tuple[EpochRecord, ...], step: int | None = None) -> str:
    """Sentence that too many attempts failed in a row, with the words of the last; "" if not.

    Args:
        job: supplies `backoffLimit`.
        epochs: all of them.
        step: after a loss, where the job goes on.
    """
    limit = job.spec.backoff_limit
    if limit is None:
        return ""
    failed = failed_in_a_row(epochs, step) + len(_failed_starts(epochs))
    if failed <= limit:
        return ""
    words = next((record.message for record in reversed(epochs) if record.message), "")
    last = f"; the last: {words}" if words else ""
    return f"{counted(failed, 'attempt')} failed in a row, backoffLimit is {limit}{last}"


def attempts_that_count(job: HeddleJob, epochs: tuple[EpochRecord, ...]) -> frozenset[int]:
    """Epochs without whose records `beyond_backoff` would count too few attempts."""
    limit = job.spec.backoff_limit
    if limit is None:
        return frozenset()
    newest = next((record for record in reversed(epochs) if record.outcome != "aborted"), None)
    first = newest.seal.first_step if newest is not None and newest.seal is not None else None
    rows = failed_records(epochs, first), _failed_starts(epochs)
    return frozenset(record.epoch for row in rows for record in row[: limit + 1])


def _failed_starts(epochs: tuple[EpochRecord, ...]) -> tuple[EpochRecord, ...]:
    """Newest attempts in a row that were given up because pods did not start, the newest first.

    One that only taught that a node has fewer GPUs is none: the next one asks for fewer.
    """
    row = takewhile(lambda record: record.outcome == "aborted", reversed(epochs))
    return tuple(r for r in row if any(failure.gpus < 2 for failure in r.start_failures))
