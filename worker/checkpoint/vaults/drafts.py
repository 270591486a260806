"""Drafts of a folder: files that are written under a hidden name, and what is left of them.

A writer holds a lock of its draft until the draft has its name, so the draft of a dead process of
this host is free.
Invariants: a name begins with a dot, so no listing shows it; a draft whose writer may live stays.
Source: flock(2).
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path

BEGINS_S = 5.0  # a writer locks its draft by then
_NUMBER = itertools.count()
_FORM = re.compile(r"\..+\.\d+\.\d+")


@contextmanager
def new_draft(path: Path) -> Iterator[tuple[Path, BufferedWriter]]:
    """A locked file beside a path; it is gone at the end unless it was renamed."""
    # Two pods may have one process id, and two threads write at once.
    owner = f"{socket.gethostname()}.{os.getpid()}.{next(_NUMBER)}"
    draft = path.with_name(f".{path.name}.{owner}")
    try:
        with draft.open("xb") as opened:
            with suppress(OSError):  # a file system without locks: age alone tells
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield draft, opened
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def is_draft(name: str) -> bool:
    """Whether a file has the name of a draft."""
    return _FORM.fullmatch(name) is not None


def is_left(draft: Path, older_than_s: float) -> bool:
    """Whether nobody writes a draft any more.

    Args:
        draft: a file.
        older_than_s: age from which a draft of another host counts as left, too.

    Raises:
        FileNotFoundError: it is gone.
    """
    age_s = time.time() - draft.stat().st_mtime
    if age_s > older_than_s:
        return True
    host = re.escape(socket.gethostname())
    is_own = re.search(rf"\.{host}\.\d+\.\d+$", draft.name) is not None
    return is_own and age_s > BEGINS_S and _is_free(draft)


def _is_free(draft: Path) -> bool:
    """Whether no process of this host holds the lock of a draft; False where that is unknown."""
    try:
        with draft.open("r+b") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        raise
    except OSError:
        return False
