"""Bring the names of a folder to the disk, so that they survive a loss of power."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_NO_FLUSH = (errno.EINVAL, errno.ENOTSUP)  # some file systems flush no folder


def flush_names(folder: Path) -> None:
    """Bring the names of a folder to the disk, where its file system can.

    Raises:
        OSError: the disk fails.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FLUSH:
            raise
    finally:
        os.close(descriptor)
