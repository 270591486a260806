"""The tree of a commit beside this checkout."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.pages import ROOT


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The tree of a commit, for as long as the block lasts.

    Raises:
        subprocess.CalledProcessError: this checkout has no such commit.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / commit
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--detach", "--quiet", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
