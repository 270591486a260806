"""tests/unit/worker/forks.py: no child outlives the process of the test that forked it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 20.0
PARENT = """
import os, signal, sys
from tests.unit.worker.forks import ended, forked
def wait(lines):
    os.write(told, f"{os.getpid()}\\n".encode())
    signal.pause()
told = os.dup(1)
ended([forked(wait), forked(wait)])
"""


def test_children_end_with_a_parent_that_its_time_limit_kills():
    """As `run_ranks` kills it: nobody is left who could stop them."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        children = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(is_alive(child) for child in children)
        parent.kill()
    deadline_s = time.monotonic() + LIMIT_S
    while any(is_alive(child) for child in children) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not any(is_alive(child) for child in children)


def is_alive(pid):
    """Whether it runs; one that ended may wait for a parent that asks."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
