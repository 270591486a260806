"""Processes of a run are found by their marker, wherever they went, and can be ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heddle.local.processes import (
    LOADING_S,
    POD_MARK,
    RUN_MARK,
    environment_of,
    kill_processes,
    processes_with,
)

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


def test_a_process_whose_program_is_still_loading_is_found():
    """One in fifty showed no environment yet when `Popen` came back, on a busy machine."""
    environment = {RUN_MARK: "run-of-this-test"}
    wait = "import signal; signal.pause()"
    for _ in range(200):
        with subprocess.Popen([sys.executable, "-c", wait], env=environment) as child:
            found = environment_of(Path(f"/proc/{child.pid}"))
            child.kill()
        assert found == f"{RUN_MARK}=run-of-this-test\0".encode()


def test_who_has_no_environment_is_not_waited_for_long():
    with subprocess.Popen(["/bin/sleep", "60"], env={}) as child:
        begun_s = time.monotonic()
        assert environment_of(Path(f"/proc/{child.pid}")) == b""
        assert LOADING_S < time.monotonic() - begun_s < LOADING_S + 5
        child.kill()


def test_who_has_no_program_is_not_asked_again():
    child = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet buried
    with pytest.raises((FileNotFoundError, ProcessLookupError)):  # by the kernel's age
        environment_of(Path(f"/proc/{child.pid}"))
    child.wait()
