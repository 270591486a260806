"""The temporary folder of a run on this machine, for data, logs and the token.

Invariant: a run that was killed leaves its folder to the next one, which removes it; the folder of
a run that lives is never touched, as the run holds a lock that ends with its process.
Source: flock(2).
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_LOCK, _DRAFT = "lock", "lock.draft"


@contextlib.contextmanager
def run_folder(prefix: str) -> Iterator[Path]:
    """A folder of its own; it is gone afterwards, and so are those of runs that were killed.

    Args:
        prefix: of its name, the same for all runs of a kind.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        _remove_if_left(left)
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        folder = Path(name)
        with (folder / _DRAFT).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / _DRAFT).rename(folder / _LOCK)  # nobody sees it without a holder
            yield folder


def _remove_if_left(folder: Path) -> None:
    """Remove a folder whose lock nobody holds; one without a lock is of a run that begins."""
    with contextlib.suppress(OSError), (folder / _LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
