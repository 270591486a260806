"""Control groups for a cluster's pods, under both versions of the kernel's interface.

Version 1 has one tree for each controller, version 2 a single tree.  A cluster has one group in
each tree, a node one inside it, and the kubelet makes the rest.

Invariant: groups are removed by whoever made them; frozen processes are thawed before they are
killed, since under version 1 a frozen process cannot die.  Source: cgroups(7), cgroup-v2.rst.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import ClusterFailed

ROOT = Path("/sys/fs/cgroup")
_LIMITS = frozenset({"cpu", "cpuset", "hugetlb", "io", "memory", "pids"})  # the kubelet's
_EMPTY_WITHIN_S = 10.0
_LOOK_AGAIN_S = 0.02


def is_unified() -> bool:
    """Whether version 2 alone is mounted."""
    return (ROOT / "cgroup.controllers").exists()


def trees() -> tuple[Path, ...]:
    """Roots of all trees; under version 1 one of version 2 may be beside them, with no limits."""
    if is_unified():
        return (ROOT,)
    mounted = (path for path in ROOT.iterdir() if not path.is_symlink() and path.is_mount())
    return tuple(sorted(mounted))


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A group by its path below the roots of the trees, such as `heddle-x/n1`."""

    path: str

    def create(self) -> None:
        """Make it, and its parents, able to hold groups with limits.

        Raises:
            ClusterFailed: the kernel refuses; the message says which file.
        """
        parts = Path(self.path).parts
        for tree in trees():
            for depth in range(1, len(parts) + 1):
                folder = tree.joinpath(*parts[:depth])
                try:
                    folder.mkdir(exist_ok=True)
                    _let_hold_limits(folder)
                except OSError as error:
                    raise ClusterFailed(
                        f"cannot make the control group {folder}: {error}"
                    ) from error

    def exists(self) -> bool:
        """Whether any tree has it."""
        return any((tree / self.path).exists() for tree in trees())

    def remove(self) -> None:
        """Remove it with all groups in it, whose processes are dead or dying."""
        deadline = time.monotonic() + _EMPTY_WITHIN_S
        while left := [folder for folder in self._folders() if not _removed(folder)]:
            if time.monotonic() > deadline:
                raise ClusterFailed(f"control groups still hold processes: {left[0]}")
            time.sleep(_LOOK_AGAIN_S)

    def freeze_pod(self, uid: str, frozen: bool) -> None:
        """Stop every process of a pod where it is, or let them go on.

        Raises:
            ClusterFailed: the node has no such pod.
        """
        freezer = ROOT if is_unified() else ROOT / "freezer"
        groups = list((freezer / self.path).rglob(f"pod{uid}"))
        if not groups:
            raise ClusterFailed(f"no control group of pod {uid} under {freezer / self.path}")
        for group in groups:
            _freeze(group, frozen)

    def thaw(self) -> None:
        """Let all frozen processes go on, so that they can be killed."""
        for folder in self._folders():
            _freeze(folder, frozen=False)

    def _folders(self) -> Iterator[Path]:
        """The groups' folders, inner before outer."""
        for tree in trees():
            for folder, _, _ in os.walk(tree / self.path, topdown=False):
                yield Path(folder)


def _let_hold_limits(folder: Path) -> None:
    if is_unified():
        for group in (folder.parent, folder):
            controllers = (group / "cgroup.controllers").read_text().split()
            enabled = (group / "cgroup.subtree_control").read_text().split()
            for name in sorted(_LIMITS.intersection(controllers).difference(enabled)):
                (group / "cgroup.subtree_control").write_text(f"+{name}")
    elif (folder / "cpuset.cpus").exists():  # version 1 starts with no CPU at all
        for name in ("cpuset.cpus", "cpuset.mems"):
            (folder / name).write_text((folder.parent / name).read_text())


def _freeze(folder: Path, frozen: bool) -> None:
    for name, words in (("freezer.state", ("THAWED", "FROZEN")), ("cgroup.freeze", "01")):
        if (folder / name).exists():  # each tree has one of them or neither
            (folder / name).write_text(words[frozen])


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # busy: a process in it has not gone yet
        return False
    return True
