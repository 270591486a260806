"""Agent and operator among strangers that connect, say half of something, and hold on.

The connections are held by this process, whose limit of open files must allow them.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

IDLE, BURST = 10_000, 1200
OPEN_FILES = 1024
ANSWER_S, LOG_BYTES_PER_S = 0.1, 1000
ANSWER_MOST_S = 2.0  # who finds the kernel's queue full is connected a second later
HALF = b"GET /v1/report HTTP/1.1\r\nHost: x\r\n"
GARBAGE = (b"\x16\x03\x01 no HTTP at all\r\n\r\n", HALF + b"Authorization: Bearer \xff\r\n\r\n")


@dataclass(frozen=True)
class Served:
    """A process that serves.

    Attributes:
        ask: where whoever watches it asks, and what with.
        log: what it has said.
    """

    pid: int
    host: str
    port: int
    ask: urllib.request.Request
    log: Path

    def answer_s(self):
        """Seconds until it has answered, over a connection of its own."""
        began_s = time.monotonic()
        with urllib.request.urlopen(self.ask, timeout=5) as answer:
            assert answer.status == 200
            answer.read()
        return time.monotonic() - began_s

    @property
    def open_files(self):
        """Descriptors that it holds."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @contextlib.contextmanager
    def busy(self):
        """It does nothing else meanwhile."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


@contextlib.contextmanager
def running(command, log, **environment):
    """A process that has as many descriptors as processes have by default."""
    with log.open("wb") as stderr:
        served = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **environment},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES)),
        )
    try:
        yield served
    finally:
        served.stdin.close()
        served.terminate()
        served.wait(20)
        served.stdout.close()


@pytest.fixture
def agent(tmp_path):
    """An agent with the token `secret`, and its report."""
    (tmp_path / "token").write_text("secret")
    command = [
        *(sys.executable, "-m", "worker", "agent", "--job", "j", "--pod", "p", "--node", "n"),
        *("--gpus", "1", "--token-file", str(tmp_path / "token"), "--exit-with-parent"),
    ]
    with running(command, tmp_path / "log") as process:
        said = json.loads(process.stdout.readline())
        url = f"http://{said['host']}:{said['port']}/v1/report"
        ask = urllib.request.Request(url, headers={"Authorization": "Bearer secret"})
        yield Served(process.pid, said["host"], said["port"], ask, tmp_path / "log")


@pytest.fixture
def operator(tmp_path, control_plane):
    """An operator of a real API server, and whether it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(str(Path(sys.executable).with_name("heddle")), "operator", "run"),
        *("--port", str(port), "--lease-name", "flooded"),
    ]
    environment = {"KUBECONFIG": str(control_plane.kubeconfig)}
    ask = urllib.request.Request(f"http://127.0.0.1:{port}/readyz")
    with running(command, tmp_path / "log", **environment) as process:
        served = Served(process.pid, "127.0.0.1", port, ask, tmp_path / "log")
        while True:
            assert process.poll() is None, served.log.read_text()
            with contextlib.suppress(OSError):
                served.answer_s()
                break
            time.sleep(0.2)
        yield served


@pytest.mark.parametrize("which", ["agent", pytest.param("operator", marks=pytest.mark.cluster)])
def test_ten_thousand_idle_connections_neither_silence_it_nor_fill_its_log(which, request):
    served = request.getfixturevalue(which)
    host, port, log = served.host, served.port, served.log
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(IDLE, allowed[1] - 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed[1], allowed[1]))
    calm_s = max(served.answer_s() for _ in range(20))  # on a busy machine any answer takes longer
    began_s, before, answers_s = time.monotonic(), log.stat().st_size, []
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, allowed)
        for number in range(most):
            stranger = held.enter_context(socket.create_connection((host, port), timeout=5))
            stranger.sendall(GARBAGE[number % 2] if number % 10 == 0 else HALF)
            if number % 1000 == 999:
                answers_s.append(served.answer_s())
        answers_s += [served.answer_s() for _ in range(50)]
        # At once, while it is busy with something else.
        with served.busy():
            for _ in range(BURST):
                stranger = held.enter_context(socket.socket())
                stranger.setblocking(False)
                stranger.connect_ex((host, port))
            time.sleep(0.2)  # for the kernel to have connected them
        answers_s += [served.answer_s() for _ in range(10)]
        open_files = served.open_files
    lasted_s, logged = time.monotonic() - began_s, log.stat().st_size - before
    print(
        f"{most} connections in {lasted_s:.1f} s: an answer takes "
        f"{1e3 * statistics.median(answers_s):.1f} ms, {1e3 * max(answers_s):.1f} ms at most; "
        f"{logged} bytes of log"
    )
    assert statistics.median(answers_s) <= ANSWER_S
    assert max(answers_s) <= max(ANSWER_MOST_S, 10 * calm_s)
    assert open_files < OPEN_FILES / 2
    assert b"Too many open files" not in log.read_bytes()
    assert logged < LOG_BYTES_PER_S * max(60.0, lasted_s), "a few traces a minute"
