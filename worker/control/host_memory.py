"""How much memory this machine can still give to its processes.

Source: Linux' /proc and cgroup v2; what files keep in memory is given back when it is asked for.
"""

from __future__ import annotations

import re
from pathlib import Path


def free_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Available memory by the kernel, or the rest of this container's limit, if less."""
    available = _number(proc / "meminfo", "MemAvailable:") * 1024
    limit = _text(cgroup / "memory.max")
    if not limit.isdecimal():  # no limit is written as a word
        return available
    held = int(_text(cgroup / "memory.current") or 0)
    files = _number(cgroup / "memory.stat", "inactive_file")
    return max(0, min(available, int(limit) - held + files))


def _number(path: Path, name: str) -> int:
    found = re.search(rf"^{name}\s+(\d+)", _text(path), re.MULTILINE)
    return int(found[1]) if found else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
