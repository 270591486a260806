"""Which run an output folder belongs to: `heddle-run.json` in it.

Invariant: a folder belongs to one run.  Who finds the record of another one writes nothing there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from worker.errors import InvalidOutput
from worker.weights.folder_names import flush_names

RECORD = "heddle-run.json"
WRITTEN_S = 2.0  # a record is written by then once its file is there


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The run that a folder belongs to.

    Attributes:
        run: its id; of a job on a cluster the uid of its object.
        job: its name.
        host: where `heddle train` runs it; "" on a cluster.
        pid: of `heddle train` there.
        has_ended: it has, by its own word.
        kept: files with a name that weights have, which were there before the run.
    """

    run: str
    job: str
    host: str = ""
    pid: int = 0
    has_ended: bool = False
    kept: tuple[str, ...] = ()

    def to_text(self) -> str:
        """The content of the file."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def of_text(text: str, path: Path) -> RunRecord | None:
        """Read the content of the file; None if it is empty.

        Raises:
            InvalidOutput: it is no record.
        """
        if not text.strip():
            return None
        try:
            found = json.loads(text)
            return RunRecord(
                run=str(found["run"]),
                job=str(found["job"]),
                host=str(found.get("host", "")),
                pid=int(found.get("pid", 0)),
                has_ended=found.get("has_ended") is True,
                kept=tuple(map(str, found.get("kept", ()))),
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise InvalidOutput(
                f"{path} is not the record of a run; remove it if no run uses the folder",
                code="Malformed",
            ) from None


def claim(folder: Path, record: RunRecord) -> str | None:
    """Make a folder that of a run of a cluster; one sentence if it is that of another one.

    Several pods of a job, and of several jobs, may try at once: the first file stays.  An empty one
    is of a writer that died, and is taken over.

    Raises:
        OSError: the folder cannot be read or written.
    """
    path = folder / RECORD
    _write_once(path, record)
    if not _text_of(path):
        _fill(path, record)
    try:
        found = RunRecord.of_text(_text_of(path) or "{}", path)
    except InvalidOutput as error:
        return f"output {str(folder)!r} cannot be used: {error}"
    if found is None or found.run == record.run:
        return None
    return (
        f"output {str(folder)!r} belongs to job {found.job}, run {found.run}, by {RECORD} in it; "
        "name another spec.output.path, or move the files of that run away"
    )


def _write_once(path: Path, record: RunRecord) -> None:
    """Write the file with its content at once, unless there is one."""
    if path.exists():
        return
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            _put(file, record)
        with contextlib.suppress(FileExistsError):
            _link(draft, path, record)
        flush_names(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _link(draft: Path, path: Path, record: RunRecord) -> None:
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: for a moment the file is empty
        with path.open("x", encoding="utf-8") as file:
            _put(file, record)


def _fill(path: Path, record: RunRecord) -> None:
    """Write into an empty file, unless somebody else does."""
    with path.open("r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:  # a file system without locks
            pass
        if not file.read():
            _put(file, record)


def _put(file: TextIO, record: RunRecord) -> None:
    """Write a record, and bring it to the disk: a loss of power is to leave no empty file."""
    file.write(record.to_text())
    file.flush()
    os.fsync(file.fileno())


def _text_of(path: Path) -> str:
    """The content, once it is written."""
    until_s = time.monotonic() + WRITTEN_S
    while not (text := path.read_text(encoding="utf-8")) and time.monotonic() < until_s:
        time.sleep(0.05)
    return text
