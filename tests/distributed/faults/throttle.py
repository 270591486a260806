"""Slower processes: the kernel lets each use a small share of a core, and sleeping costs nothing.

A process that is stopped and continued again and again is no slow one: Linux counts none of its
stops as time of a wait that has a limit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD_US = 100_000
ROOT = Path("/sys/fs/cgroup")


def lacking_groups() -> str:
    """Why no control group can be made here; "" if one can."""
    second = ROOT / "cgroup.controllers"
    has_cpu = "cpu" in second.read_text().split() if second.exists() else (ROOT / "cpu").is_dir()
    folder = ROOT if second.exists() else ROOT / "cpu"
    return "" if has_cpu and os.access(folder, os.W_OK) else "no control group for cores is allowed"


@contextmanager
def slowed(pids: Iterable[int], times: float) -> Iterator[None]:
    """Each of the processes has one `times`-th of a core within; root only."""
    groups = [_Group(pid, round(PERIOD_US / times)) for pid in pids]
    try:
        yield
    finally:
        for group in groups:
            group.remove()


class _Group:
    """A control group of one process, and how much of each period that gets."""

    def __init__(self, pid: int, quota_us: int) -> None:
        root = ROOT
        is_second = (root / "cgroup.controllers").exists()  # version of control groups
        root = root if is_second else root / "cpu"
        rows = [row.split(":") for row in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
        name = "" if is_second else "cpu"
        self._usual = root / next(path for _, n, path in rows if name in n.split(",")).lstrip("/")
        self._folder = root / f"heddle-slow-{pid}"
        self._folder.mkdir()
        if is_second:
            (root / "cgroup.subtree_control").write_text("+cpu")
            (self._folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (self._folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        (self._folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """The processes that are left go back to where they were."""
        for pid in (self._folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):  # it ends
                (self._usual / "cgroup.procs").write_text(pid)
        self._folder.rmdir()
