"""Finding and ending every process of a run by a marker in its environment.

Invariant: a process that any child of ours starts inherits the marker, so none can hide by leaving
its process group or losing its parent.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

RUN_MARK = "HEDDLE_RUN_ID"
POD_MARK = "HEDDLE_POD"


def processes_with(**marks: str) -> tuple[int, ...]:
    """Pids of living processes whose environment holds all these values; never our own."""
    wanted = {f"{name}={value}".encode() for name, value in marks.items()}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # it ended, or belongs to somebody else
            continue
        if wanted <= set(environment.split(b"\0")):
            found.append(int(entry.name))
    return tuple(sorted(found))


def kill_processes(pids: tuple[int, ...]) -> None:
    """SIGKILL each; one that has ended is fine."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
