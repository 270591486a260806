"""The output folder of a run on this machine: whose it is, and what of it goes for a fresh run.

A run holds the lock of `heddle-run.json` for as long as its process lives, so the lock of a dead
process is free.
Invariant: only files that a run of Heddle has left are ever removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from planner.model.config import CONFIG
from planner.wording import reason_of
from worker.weights.hugging_face.config import COPIED
from worker.weights.run_record import RECORD, RunRecord

ANOTHER = "name another folder with --output-path"
MEASURED = (
    *("steps-epoch-*.jsonl", "evaluations-epoch-*.jsonl", "events.out.tfevents.*"),
    "corrections.jsonl",
)
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
PARTS = (
    *("weights-stage*-slot*.safetensors", "weights-stage*-slot*.safetensors.*.whole"),
    *("weights-stage*-slot*.safetensors.part", "weights.index.json", "weights.index.json.*.part"),
)
MODEL = (*WEIGHTS, CONFIG)
ALL = (*MODEL, *COPIED, *(f"{name}.part" for name in (*MODEL, *COPIED)))  # with drafts


@dataclass(frozen=True, slots=True)
class Use:
    """Permission to use an output folder.

    Attributes:
        refusal: why a run may not use it, one sentence; "" if it may.
        note: what is said of a run that was there before; "" if nothing.
        removable: what a fresh run removes of that one.
        kept: files with a name that a model's files have, which no run of Heddle wrote.
        goes_on: id of the run that goes on from its checkpoint; "" if none does.
    """

    refusal: str = ""
    note: str = ""
    removable: tuple[Path, ...] = ()
    kept: tuple[str, ...] = ()
    goes_on: str = ""


def use_of(
    folder: Path, record: RunRecord | None, host: str, is_fresh: bool, saved: str = ""
) -> Use:
    """Whether a run of this host may use a folder that no process has locked.

    Args:
        folder: for the output.
        record: that it holds, if any.
        host: of this machine.
        is_fresh: what an earlier run left may be removed.
        saved: name of the job, if a checkpoint of it is there.
    """
    if record is not None and not record.host:
        return Use(
            f"the output folder {folder} belongs to job {record.job} of a cluster; {ANOTHER}, or "
            f"remove {folder / RECORD} if that job is gone"
        )
    if record is not None and record.host != host and not record.has_ended:
        return Use(
            f"the output folder {folder} is used by process {record.pid} of host {record.host}, "
            f"unseen from here; {ANOTHER}, or remove {folder / RECORD} if it is dead"
        )
    kept = record.kept if record is not None else tuple(_names(folder, ALL))
    models = [name for name in _names(folder, MODEL) if name not in kept]
    foreign = [name for name in _names(folder, MODEL) if name in kept]
    removable = tuple(_left(folder, record, kept))
    if foreign:
        return Use(
            f"the output folder {folder} holds {foreign[0]}, which no run is recorded to have "
            f"written; {ANOTHER}, or move it away"
        )
    if record is not None and saved == record.job and not models and not is_fresh:
        return Use(kept=kept, goes_on=record.run)
    results = models or any(path.parent in _folders(folder) for path in removable)
    if results and not is_fresh:
        whose = "another run" if record is None else f"a run of job {record.job}"
        return Use(
            f"the output folder {folder} holds files of {whose}; {ANOTHER}, or give --fresh to "
            "remove its measurements, logs and weights"
        )
    note = ""
    if record is not None and not record.has_ended:
        note = f"the output folder is taken over from process {record.pid}, which is dead"
    return Use(note=note, removable=removable if is_fresh else (), kept=kept)


def look(folder: Path, is_fresh: bool, saved: str = "") -> Use:
    """Answer of `OutputFolder` for a folder now; nothing is changed.

    Raises:
        InvalidJob: its record cannot be read.
    """
    path = folder / RECORD
    if not path.is_file():
        return use_of(folder, None, os.uname().nodename, is_fresh, saved)
    with _opened(path, writes=False) as file:
        return _judged(folder, file, is_fresh, saved, SHARED)


class OutputFolder:
    """An output folder that is locked for a run of this process.

    Attributes:
        note: see `Use`.
        run: id of the run, that of the earlier one where it goes on.

    Args:
        folder: it is made if it is missing.
        record: of the run.
        is_fresh: what an earlier run left is removed.
        saved: see `use_of`.

    Raises:
        InvalidJob: it is used, or holds what another run left.
    """

    def __init__(self, folder: Path, record: RunRecord, is_fresh: bool, saved: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = _opened(folder / RECORD, writes=True)
        try:
            use = _judged(folder, self._file, is_fresh, saved, EXCLUSIVE)
            if use.refusal:
                raise InvalidJob(use.refusal, code="Taken")
            _remove(use.removable, folder)
            self.note, self.run = use.note, use.goes_on or record.run
            self._record = replace(record, run=self.run, kept=use.kept)
            _put(self._file, self._record, folder)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """The run has ended: say so, and free the folder."""
        self._record = replace(self._record, has_ended=True)
        with contextlib.suppress(OSError):  # a full disk costs the word, not the lock
            write(self._file, self._record)
        with contextlib.suppress(OSError):
            self._file.close()


def _judged(folder: Path, file: TextIO, is_fresh: bool, saved: str, kind: int) -> Use:
    """Permission for a folder, once its record is locked, or is found to be."""
    is_locked, record = take(file, folder / RECORD, kind)
    if is_locked:
        who = holder_of(record)
        return Use(f"the output folder {folder} is used by {who}; {ANOTHER}, or wait for its end")
    return use_of(folder, record, os.uname().nodename, is_fresh, saved)


def _put(file: TextIO, record: RunRecord, folder: Path) -> None:
    try:
        write(file, record)
    except OSError as error:
        raise _unusable(folder / RECORD, error, "written") from None


def _opened(path: Path, *, writes: bool) -> TextIO:
    try:
        return opened(path, writes=writes)
    except OSError as error:
        raise _unusable(path, error, "opened") from None


def _unusable(path: Path, error: OSError, done: str) -> InvalidJob:
    return InvalidJob(
        f"the output folder cannot be used: {path} cannot be {done} ({reason_of(error).lower()}); "
        f"{ANOTHER}",
        code="Unwritable",
    )


def _left(folder: Path, record: RunRecord | None, kept: tuple[str, ...]) -> Iterator[Path]:
    """The files that a run has left, by their names."""
    for name, patterns in (("measurements", MEASURED), ("parts", PARTS)):
        for pattern in patterns:
            yield from sorted((folder / name).glob(pattern))
    if record is not None:
        yield from sorted((folder / "logs").glob(f"{record.job}-*.log"))
        wrote_model = any(name not in kept for name in _names(folder, WEIGHTS))
        for name in _names(folder, ALL if wrote_model else MODEL):
            if name not in kept:
                yield folder / name


def _names(folder: Path, patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        yield from sorted(path.name for path in folder.glob(pattern))


def _folders(folder: Path) -> tuple[Path, Path]:
    """Files that only a run writes."""
    return folder / "measurements", folder / "parts"


def _remove(paths: tuple[Path, ...], folder: Path) -> None:
    """Remove files, and folders of a run that nothing is left in."""
    for path in paths:
        path.unlink(missing_ok=True)
    for emptied in _folders(folder):
        with contextlib.suppress(OSError):
            emptied.rmdir()
