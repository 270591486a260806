"""worker/agent/processes.py: messages of a process that are long, or that nobody can read."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading

import pytest

from worker.agent.fork_server_start import ForkServer
from worker.agent.processes import LINE_BYTES, Processes
from worker.control.messages import Failed
from worker.error_kinds import Trouble

PATIENCE_S = 30.0


class Heard:
    """A supervisor that remembers, and may err itself."""

    def __init__(self, fault=None):
        self.messages, self.gone, self.fault = [], [], fault
        self.news = asyncio.Event()

    def heard(self, process, message):
        if self.fault is not None:
            raise self.fault
        self.messages.append(message)
        self.news.set()

    def exited(self, process, code):
        self.gone.append(process.exited(code, 0.0))
        self.news.set()


@pytest.fixture
def child():
    """A process that a test may see killed."""
    found = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield found
    found.kill()
    found.wait()


def said(line, child, fault=None):
    """What the supervisor heard of a rank that says a line, and that the child stands for."""

    async def main():
        control, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        supervisor = Heard(fault)
        processes = Processes(supervisor, "127.0.0.1", ForkServer(child, control))
        processes.fork(1, "module:function", {})
        _, (channel,), _, _ = await asyncio.to_thread(socket.recv_fds, server, 1 << 16, 1)
        (process,) = processes.all
        process.pid = child.pid
        with socket.socket(fileno=channel) as connection, control, server:
            threading.Thread(target=send, args=(connection.dup(), line), daemon=True).start()
            await asyncio.wait_for(supervisor.news.wait(), PATIENCE_S)
        return supervisor

    return asyncio.run(main())


def send(connection, line):
    with connection:
        try:
            connection.sendall(line)
        except OSError:  # the agent reads no further
            return


def test_a_long_message_is_heard(child):
    message = Failed(trouble=Trouble("x" * 200_000, "other"))
    assert said(message.to_line(), child).messages == [message]


@pytest.mark.parametrize(
    ("line", "fault", "words"),
    [
        (b"x" * 2 * LINE_BYTES + b"\n", None, "chunk exceed the limit"),
        (b"hello\n", None, "1 validation error"),
        (Failed(trouble=Trouble("a", "other")).to_line(), ZeroDivisionError("zero"), "zero"),
    ],
    ids=["too long", "of no kind", "not understood"],
)
def test_a_process_that_cannot_be_read_is_killed_and_its_exit_says_why(line, fault, words, child):
    (gone,) = said(line, child, fault).gone
    assert gone.error.startswith("a message of the rank on GPU 1 could not be read, and it was")
    assert words in gone.error
    assert child.wait(PATIENCE_S) == -signal.SIGKILL
