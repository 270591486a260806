"""What a killed run leaves is removed by the next one, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from heddle.local.run_folder import run_folder

PREFIX = "heddle-some-"
HOLDS = f"""
import sys, time
from heddle.local.run_folder import run_folder
with run_folder({PREFIX!r}) as folder:
    (folder / "token").write_text("secret")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def other_run():
    """A process that holds a folder, and the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_gone_after_its_run():
    with run_folder(PREFIX) as folder:
        (folder / "data").mkdir()
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()


def test_the_folder_of_a_killed_run_is_removed_by_the_next_one_and_that_of_a_living_one_stays(
    tmp_path,
):
    killed, left = other_run()
    living, held = other_run()
    begins = tmp_path / f"{PREFIX}begins"
    begins.mkdir()
    try:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        assert (left / "token").exists()
        with run_folder(PREFIX):
            assert not left.exists()
            assert (held / "token").exists()
            assert begins.exists()
    finally:
        for process in (killed, living):
            process.kill()
            process.wait()
            process.stdout.close()
