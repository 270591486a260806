"""What a writer that is killed amid a save leaves in a folder of checkpoints, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

WRITES = """
import sys, time
from pathlib import Path
from worker.checkpoint.vaults.folder_vault import FolderVault

def chunks():
    yield b"half"
    print("writes", flush=True)
    time.sleep(600)

FolderVault(Path(sys.argv[1])).put("step-8.e1/rank-0-0.safetensors", chunks(), 8)
"""
AGO_S = 60.0  # longer than a writer takes to lock its draft, shorter than a day


def left_by_a_killed_writer(folder: Path) -> Path:
    """The draft that a process leaves when it is killed amid a write."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES, str(folder)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writes\n"
        process.kill()
    (draft,) = (folder / "step-8.e1").iterdir()
    return draft


def old_draft(folder: Path) -> Path:
    """The same, of a process that was killed a minute ago."""
    draft = left_by_a_killed_writer(folder)
    age(draft)
    return draft


def age(draft: Path) -> None:
    """Let a draft be written last a minute ago."""
    at_s = time.time() - AGO_S
    os.utime(draft, (at_s, at_s))
