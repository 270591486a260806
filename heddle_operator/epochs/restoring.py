"""A start from a checkpoint: the pods of an epoch tell which ones they see, one is chosen.

Invariant: no job starts anew while a checkpoint is there that it cannot take; all ranks read the
manifest that the seal names.
Source: docs/decisions/0022.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from heddle_operator.apis.wording import named
from heddle_operator.epochs.chosen_checkpoint import (
    newest_of,
    none_is_whole,
    why_refused,
    why_unread,
)
from heddle_operator.epochs.ending import end_by_limit, fail
from heddle_operator.rules.limits import beyond_backoff
from heddle_operator.state.actions import CloseEpoch, RecordEvent, SendLook
from heddle_operator.state.decision import Decision
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.reachability import report_of
from heddle_operator.state.reasons import DecisionReason
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import Observed
from planner.wording import counted, joined
from worker.contract import FoundCheckpoints, Look, Restore

LOOK_AGAIN_S = 5.0  # at a folder that cannot be read, or that pods see differently


def lose(view: View, live: EpochRecord, problem: str) -> Decision:
    """The ranks hold no whole state any more: the job goes back to a checkpoint."""
    step = view.observed.reached_step
    after = f" after step {step}" if step is not None else ""
    message = f"{problem}{after}; the job looks for its newest checkpoint"
    event = RecordEvent(f"back-{live.epoch}", "StateLost", message)
    closed = CloseEpoch(epoch=live.epoch, outcome="lost", message=problem, step=step)
    return Decision(actions=(closed, event), phase="Recovering", message=message, look_again_s=0.0)


def choose_checkpoint(
    view: View, record: EpochRecord, pods: Collection[str]
) -> Restore | Decision | None:
    """The checkpoint of a start; None: it is none; a decision while none can be chosen."""
    training = view.job.training
    if training.checkpoint is None:
        return None
    run = training.run if view.situation.left is not None else None  # at its start it has no save
    path = training.checkpoint.path
    look = Look(epoch=record.epoch, training=training, run=run)
    old = [pod for pod in pods if _is_old(view.observed, pod)]
    if old:
        words = f"{named('pod', old)} cannot look for checkpoints; give the workers a newer image"
        return _waits(words, "CheckpointUnread")
    answers = {pod: _answer(view.observed, pod, look) for pod in pods}
    silent = [pod for pod in pods if answers[pod] is None]
    if silent:
        asked = tuple(SendLook(pod, look) for pod in silent)
        done = len(answers) - len(silent)
        words = f"the pods look for checkpoints in {path}: {done} of {len(answers)} are done"
        return replace(_waits(words, None), actions=asked)
    told = {pod: answer for pod, answer in answers.items() if answer is not None}
    problem = _problem(told, path)
    chosen = (
        _waits(problem[1], problem[0])
        if problem is not None
        else _chosen(view, record, next(iter(told.values())))
    )
    if isinstance(chosen, Decision) and chosen.phase == "Preparing":
        again = [pod for pod, answer in told.items() if answer.age_s >= LOOK_AGAIN_S]
        return replace(chosen, actions=tuple(SendLook(pod, look) for pod in again))
    return chosen


def restarts(epochs: Iterable[EpochRecord]) -> Iterator[tuple[int, int, int]]:
    """(epoch, step, steps lost) of each start from a checkpoint, as far as anybody told."""
    reached = 0
    for record in epochs:
        restore = record.seal.restore if record.seal is not None else None
        if restore is not None:
            yield record.epoch, restore.step, max(0, reached - restore.step)
        if record.is_left:
            reached = record.step or 0


def restored(view: View, record: EpochRecord, restore: Restore) -> RecordEvent:
    """The Event of a start from a checkpoint."""
    left = view.situation.left
    lost = max(0, (left.step or 0) - restore.step) if left is not None else 0
    again = f"; {counted(lost, 'step')} are trained again" if lost else ""
    return RecordEvent(
        f"restored-{record.epoch}",
        "Restored",
        f"epoch {record.epoch} goes on from the checkpoint of step {restore.step} in "
        f"{restore.path}{again}",
    )


def _chosen(view: View, record: EpochRecord, told: FoundCheckpoints) -> Restore | Decision | None:
    newest = newest_of(told, _damaged(view.observed))
    refused = why_refused(told, newest)
    if refused:
        return _waits(refused, "CheckpointRefused")
    if newest is not None:
        restore = Restore(
            path=told.path, epoch=newest.epoch, step=newest.step, manifest=newest.manifest
        )
        beyond = beyond_backoff(view.job, view.observed.epochs[:-1], restore.step)
        return end_by_limit("BackoffLimitExceeded", beyond, view.observed) if beyond else restore
    if view.situation.left is not None:
        words = f"no rank holds the state, and {told.path} has no whole checkpoint"
        return fail(record, "StateLost", words)
    broken = none_is_whole(told, newest)
    if broken:
        return _waits(broken, "CheckpointRefused")
    return None


def _damaged(observed: Observed) -> frozenset[str]:
    """Manifests with which ranks could not start, because a block of them is damaged."""
    return frozenset(
        record.seal.restore.manifest
        for record in observed.epochs
        if record.seal is not None and record.seal.restore is not None
        if any(failure.kind == "checkpoint" for failure in record.failures)
    )


def _is_old(observed: Observed, pod: str) -> bool:
    report = report_of(observed, pod)
    return report is not None and not report.looks


def _answer(observed: Observed, pod: str, look: Look) -> FoundCheckpoints | None:
    report = report_of(observed, pod)
    answer = report.checkpoints if report is not None else None
    return answer if answer is not None and answer.epoch == look.epoch else None


def _problem(told: dict[str, FoundCheckpoints], path: str) -> tuple[DecisionReason, str] | None:
    """Why nothing can be chosen yet, as a code and a sentence."""
    failed = [pod for pod, answer in told.items() if answer.error is not None]
    if failed:
        why = joined(told[pod].error or "" for pod in failed)
        return "CheckpointUnread", f"{named('pod', failed)} cannot read {path}: {why}"
    unread = next((why for answer in told.values() if (why := why_unread(answer))), "")
    if unread:
        return "CheckpointUnread", unread
    seen = {answer.found: pod for pod, answer in told.items()}
    if len(seen) > 1:
        first, second = sorted(seen.values())[:2]
        return (
            "CheckpointsDiffer",
            f"pods {first} and {second} see different checkpoints in {path}; it must be a volume "
            "that all pods share",
        )
    return None


def _waits(message: str, reason: DecisionReason | None) -> Decision:
    return Decision(
        actions=(), phase="Preparing", message=message, look_again_s=LOOK_AGAIN_S, reason=reason
    )
