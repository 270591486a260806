"""Memory that planners may hold together, by what the operator's container may."""

from __future__ import annotations

from pathlib import Path

from planner.cores import GROUPS

SHARE = 0.5  # the operator itself, with its cache of the cluster, has the rest
USUAL_BYTES = 1 << 30  # where nothing limits the container


def planner_memory_bytes(groups: Path = GROUPS) -> int:
    """`SHARE` of the memory limit of this process's container, or `USUAL_BYTES` without one.

    Args:
        groups: where cgroup v2 is mounted.
    """
    try:
        return int(SHARE * int((groups / "memory.max").read_text(encoding="utf-8")))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return USUAL_BYTES
