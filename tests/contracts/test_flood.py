"""An agent among strangers that connect, say half of something, and hold on.

The connections are held by this process, whose limit of open files must allow them; the agent has
the limit that processes have by default.
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

import pytest

pytestmark = pytest.mark.slow

IDLE = 10_000
OPEN_FILES = 1024
REPORT_S, LOG_BYTES_PER_S = 0.1, 1000
HALF = b"GET /v1/report HTTP/1.1\r\nHost: x\r\n"
GARBAGE = (b"\x16\x03\x01 no HTTP at all\r\n\r\n", HALF + b"Authorization: Bearer \xff\r\n\r\n")


@pytest.fixture
def agent(tmp_path):
    """(host, port, what it has logged) of an agent with the token `secret`."""
    (tmp_path / "token").write_text("secret")
    command = [
        *(sys.executable, "-m", "worker", "agent", "--job", "j", "--pod", "p", "--node", "n"),
        *("--gpus", "1", "--token-file", str(tmp_path / "token"), "--exit-with-parent"),
    ]
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        served = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES)),
        )
    try:
        said = json.loads(served.stdout.readline())
        yield said["host"], said["port"], log
    finally:
        served.stdin.close()
        served.wait(20)
        served.stdout.close()


def report_s(host, port):
    """Seconds until an operator has its report, with a connection of its own."""
    request = urllib.request.Request(
        f"http://{host}:{port}/v1/report", headers={"Authorization": "Bearer secret"}
    )
    began_s = time.monotonic()
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert json.loads(answer.read())["job"] == "j"
    return time.monotonic() - began_s


def test_ten_thousand_idle_connections_neither_silence_an_agent_nor_fill_its_log(agent):
    host, port, log = agent
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(IDLE, allowed[1] - 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed[1], allowed[1]))
    began_s, before = time.monotonic(), log.stat().st_size
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, allowed)
        for number in range(most):
            stranger = held.enter_context(socket.create_connection((host, port), timeout=5))
            stranger.sendall(GARBAGE[number % 2] if number % 10 == 0 else HALF)
            if number % 1000 == 999:
                report_s(host, port)
        reports_s = [report_s(host, port) for _ in range(50)]
    lasted_s, logged = time.monotonic() - began_s, log.stat().st_size - before
    print(
        f"{most} connections in {lasted_s:.1f} s: a report takes "
        f"{1e3 * statistics.median(reports_s):.1f} ms, {1e3 * max(reports_s):.1f} ms at most; "
        f"{logged} bytes of log"
    )
    assert statistics.median(reports_s) <= REPORT_S
    assert logged < LOG_BYTES_PER_S * max(60.0, lasted_s), "a few traces a minute"
