"""The demo on a terminal: the live view and its keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HEDDLE = str(Path(sys.executable).parent / "heddle")
ROWS, COLUMNS = 40, 140


class Terminal:
    """A demo on a pseudo terminal."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [HEDDLE, "demo", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def until(self, pattern: str, timeout_s: float = 120.0) -> None:
        """Read until the pattern was shown."""
        deadline, seen = time.monotonic() + timeout_s, len(self.shown)
        while not re.search(pattern, self.shown[seen:]):
            assert time.monotonic() < deadline, f"{pattern!r} was not shown: {self.shown[-2000:]}"
            if select.select([self._ours], [], [], 0.5)[0]:
                try:
                    self.shown += os.read(self._ours, 65536).decode(errors="replace")
                except OSError:  # the other end closed
                    assert re.search(pattern, self.shown[seen:]), self.shown[-2000:]


def test_nodes_join_and_leave_on_keys_and_q_ends_the_run() -> None:
    terminal = Terminal("--interactive")
    terminal.until(r"step [1-9]\d*/")
    terminal.press("a")
    terminal.until(r"epoch 2 \(join\)")
    terminal.press("q")
    terminal.until(r"Try next")
    assert terminal.process.wait(timeout=60) == 0
    assert "Traceback" not in terminal.shown
    assert "\x1b[" in terminal.shown  # live: the screen is drawn, not printed line by line
