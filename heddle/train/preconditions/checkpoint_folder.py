"""The folder of a job's checkpoints: one run on a machine saves there at a time.

A run locks a hidden file in it, which no listing of checkpoints shows.  A store at a URL, such as
s3://, has no lock.
Invariant: whoever does not hold the lock writes and removes nothing there.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from heddle.train.preconditions.run_lock import (
    EXCLUSIVE,
    SHARED,
    holder_of,
    opened,
    take,
    write,
)
from heddle_operator.apis.errors import InvalidJob
from planner.wording import reason_of
from worker.checkpoint.vaults.open_vault import folder_of
from worker.weights.run_record import RECORD, RunRecord

LOCK = f".{RECORD}"
ANOTHER = "name another spec.checkpoint.path"


def why_taken(path: str) -> str:
    """Why a run may not save there now, one sentence; "" if it may.  Nothing is changed.

    Args:
        path: of the job's own checkpoints.

    Raises:
        InvalidJob: the lock cannot be read.
    """
    folder = folder_of(path)
    if folder is None or not (folder / LOCK).is_file():
        return ""
    with _opened(folder, writes=False) as file:
        return _refusal(folder, *take(file, folder / LOCK, SHARED))


class CheckpointFolder:
    """A folder of checkpoints that is locked for a run of this process.

    Args:
        path: of the job's own checkpoints; its folder is made if it is missing.
        record: of the run.

    Raises:
        InvalidJob: another run holds it (code `Taken`), or it cannot be locked.
    """

    def __init__(self, path: str, record: RunRecord) -> None:
        self._record, self._file = record, None
        folder = folder_of(path)
        if folder is not None:
            self._file = _locked(folder, record)

    def close(self) -> None:
        """The run has ended: say so, and free the folder."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # a full disk costs the word, not the lock
            write(self._file, replace(self._record, has_ended=True))
        with contextlib.suppress(OSError):
            self._file.close()


def _locked(folder: Path, record: RunRecord) -> TextIO:
    file = _opened(folder, writes=True)
    try:
        refusal = _refusal(folder, *take(file, folder / LOCK, EXCLUSIVE))
        if refusal:
            raise InvalidJob(refusal, code="Taken")
        write(file, record)
    except OSError as error:
        file.close()
        raise _unusable(folder, error) from None
    except BaseException:
        file.close()
        raise
    return file


def _refusal(folder: Path, is_held: bool, record: RunRecord | None) -> str:
    if is_held:
        return (
            f"checkpoints in {folder} are saved by {holder_of(record)}; {ANOTHER}, or wait for "
            "its end"
        )
    if record is not None and record.host != os.uname().nodename and not record.has_ended:
        return (
            f"checkpoints in {folder} are saved by process {record.pid} of host {record.host}, "
            f"unseen from here; {ANOTHER}, or remove {folder / LOCK} if it is dead"
        )
    return ""


def _opened(folder: Path, *, writes: bool) -> TextIO:
    try:
        if writes:
            folder.mkdir(parents=True, exist_ok=True)
        return opened(folder / LOCK, writes=writes)
    except OSError as error:
        raise _unusable(folder, error) from None


def _unusable(folder: Path, error: OSError) -> InvalidJob:
    return InvalidJob(
        f"checkpoints cannot be saved in {folder}: {reason_of(error)}; {ANOTHER}",
        code="Unwritable",
    )
