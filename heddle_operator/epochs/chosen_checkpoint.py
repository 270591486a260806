"""Which of the checkpoints that an agent found a start goes on from.

`heddle train` asks the same of a folder before a run.
Invariant: no job starts anew while a newer checkpoint is there that it cannot take.
"""

from __future__ import annotations

from collections.abc import Collection

from worker.contract import FoundCheckpoint, FoundCheckpoints


def newest_of(told: FoundCheckpoints, tried: Collection[str] = ()) -> FoundCheckpoint | None:
    """The newest checkpoint that fits the job; None: there is none.

    Args:
        told: the answer of an agent.
        tried: digests of manifests with which ranks could not start.
    """
    return next((one for one in told.found if one.manifest not in tried), None)


def why_refused(told: FoundCheckpoints, newest: FoundCheckpoint | None) -> str:
    """Why a job may not start: a newer checkpoint is of another job; "" if none is."""
    age = (newest.epoch, newest.step) if newest is not None else (0, -1)
    for one in told.refused:
        if (one.epoch, one.step) > age and one.code in ("other", "newer"):
            return f"step {one.step} in {told.path}: {one.error}"
    return ""


def none_is_whole(told: FoundCheckpoints, newest: FoundCheckpoint | None) -> str:
    """That checkpoints are there, and all are damaged; "" if that is not so."""
    if newest is not None or not (told.refused or told.found):
        return ""
    return (
        f"no checkpoint in {told.path} is whole; remove them with `heddle checkpoint rm`, or "
        "give another path"
    )


def why_unread(told: FoundCheckpoints) -> str:
    """Why the folder, or a checkpoint in it, cannot be read; "" if all can."""
    if told.error is not None:
        return f"{told.path} cannot be read: {told.error}"
    unread = next((one for one in told.refused if one.code == "unread"), None)
    return f"{told.path} cannot be read: {unread.error}" if unread is not None else ""
