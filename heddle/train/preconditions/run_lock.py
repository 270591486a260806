"""The lock of a run on a folder: flock on a file that has the run's record.

A process that dies frees its lock.
Source: flock(2), whose locks also hold between the hosts of a shared file system.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import TextIO

from heddle_operator.apis.errors import InvalidJob
from planner.errors import HeddleError
from worker.weights.run_record import RunRecord

SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX
NOT_SUPPORTED = (errno.ENOTSUP, errno.ENOLCK, errno.EINVAL, errno.ENOSYS)


def opened(path: Path, *, writes: bool) -> TextIO:
    """Open a file that has, or is to have, the record of a run; it is made where it is written.

    Raises:
        OSError: it cannot be opened.
    """
    if not writes:
        return path.open(encoding="utf-8")
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+", encoding="utf-8")


def take(file: TextIO, path: Path, kind: int) -> tuple[bool, RunRecord | None]:
    """Whether another process holds the lock, and the record in the file; else it is taken.

    Args:
        file: that is opened; its end frees the lock.
        path: of it.
        kind: of the lock, `SHARED` or `EXCLUSIVE`.

    Raises:
        InvalidJob: it holds no record (code `Taken`).
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        is_held = False
    except BlockingIOError:
        is_held = True
    except OSError as error:
        if error.errno not in NOT_SUPPORTED:
            raise
        is_held = False  # a file system without locks: the record alone tells
    file.seek(0)
    try:
        return is_held, RunRecord.of_text(file.read(), path)
    except HeddleError as error:
        if is_held:
            return True, None  # its holder writes it now
        raise InvalidJob(str(error), code="Taken") from None


def write(file: TextIO, record: RunRecord) -> None:
    """Put a record in place of the one in the file; where a disk is full, that one stays.

    Raises:
        OSError: it is not written.
    """
    content = record.to_text().encode()
    written = os.pwrite(file.fileno(), content, 0)
    if written < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(file.fileno(), written)


def holder_of(record: RunRecord | None) -> str:
    """The process that holds a lock, in words."""
    if record is None:
        return "another process"
    return f"process {record.pid} of host {record.host}, which trains job {record.job}"
