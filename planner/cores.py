"""How many cores this process may use, as a container's limit leaves them.

With more threads than its quota a process is stopped for most of every period, all threads at once,
so that four of them would do less than one.
Source: Linux, control groups v1 (cpu.cfs_quota_us) and v2 (cpu.max).
"""

from __future__ import annotations

import os
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


def usable_cores(groups: Path = GROUPS) -> int:
    """Whole cores, at least 1; `groups` is where the control groups are mounted."""
    cores = len(os.sched_getaffinity(0))
    quota, period = (
        _read(groups / "cpu.max")
        or (
            *_read(groups / "cpu" / "cpu.cfs_quota_us"),
            *_read(groups / "cpu" / "cpu.cfs_period_us"),
        )
        or ("max", "1")
    )
    if quota in {"max", "-1"}:
        return cores
    return max(1, min(cores, int(quota) // int(period)))


def _read(file: Path) -> tuple[str, ...]:
    """The words of a file; none where it cannot be read."""
    try:
        return tuple(file.read_text(encoding="utf-8").split())
    except OSError:
        return ()
