"""Processes of a run are found by their marker, wherever they went, and can be ended."""

from __future__ import annotations

import subprocess
import sys

from heddle_operator.local.processes import POD_MARK, RUN_MARK, kill_processes, processes_with

CHILD = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"


def test_a_process_in_a_session_of_its_own_is_found_and_killed():
    environment = {RUN_MARK: "run-of-this-test", POD_MARK: "p"}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with child:
        child.stdout.readline()
        assert processes_with(**{RUN_MARK: "run-of-this-test"}) == (child.pid,)
        assert processes_with(**{RUN_MARK: "run-of-this-test", POD_MARK: "q"}) == ()
        kill_processes(processes_with(**environment))
        assert child.wait(10) == -9
    assert processes_with(**environment) == ()
    kill_processes((child.pid,))
