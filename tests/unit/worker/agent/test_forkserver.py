"""agent/forkserver.py: a child costs a fork, its end is told, and none outlives the server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.worker.changes import change, plan
from worker.agent.agent import Agent, AgentSettings
from worker.agent.fork_server_start import ForkServer
from worker.agent.forkserver import ENVIRONMENT, MESSAGE_BYTES
from worker.control.messages import (
    FROM_FORK_SERVER,
    FROM_PROCESS,
    Exited,
    Failed,
    Fork,
    Forked,
    ForkRefused,
    Warm,
)
from worker.device.environment import environment_of
from worker.error_kinds import Trouble

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
ENTRIES = "tests.unit.worker.entries"
LIGHT = f"""
import os, socket, sys
from worker.agent import forkserver
forkserver.FIRST_USE = ("{ENTRIES}",)  # torch and DeepSpeed are not what these tests are about
forkserver.die_with_parent(int(sys.argv[2]))
forkserver.serve(socket.socket(fileno=int(sys.argv[4])))
"""
REAL = ("-m", "worker", "forkserver")
LIMIT_S = 60.0
UNUSED_USER = 54_321  # who has no other process
NO_PROCESS = "no process could be made: resource temporarily unavailable"


class Server:
    """A fork server process and the agent's end of its control socket."""

    def __init__(self, *command, agent=None, **environment):
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(LIMIT_S)
        with theirs:
            ours = ("--agent-pid", str(agent or os.getpid()), "--control-fd", str(theirs.fileno()))
            self.process = subprocess.Popen(
                [sys.executable, *command, *ours],
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT, **environment_of("cpu"), **environment},
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
            )

    def hear(self):
        """The next answer."""
        return FROM_FORK_SERVER.validate_json(self.control.recv(MESSAGE_BYTES))

    def fork(self, entry, key=1, **arguments):
        """Ask for a child; the agent's end of its channel."""
        ours, theirs = socket.socketpair()
        ours.settimeout(LIMIT_S)
        request = Fork(key=key, entry=f"{ENTRIES}:{entry}", arguments=arguments)
        with theirs:
            socket.send_fds(self.control, [request.to_line()], [theirs.fileno()])
        return ours

    def close(self):
        self.control.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def server():
    found = Server("-c", LIGHT)
    assert found.hear() == Warm()
    yield found
    found.close()


def read_all(channel):
    with channel, channel.makefile("rb") as lines:
        return [line.decode().strip() for line in lines]


def test_a_child_runs_its_entry_and_its_end_is_told(server):
    channel = server.fork("tell", key=7, word="hello")
    forked = server.hear()
    (line,) = read_all(channel)
    about = json.loads(line)
    assert forked == Forked(key=7, pid=about["pid"])
    assert about["arguments"] == {"word": "hello"}
    assert about["parent"] == server.process.pid
    assert (about["threads"], about["ignores"]) == ("1", True)
    assert server.hear() == Exited(pid=about["pid"], code=0)


@pytest.mark.parametrize("code", [0, 3])
def test_the_status_of_a_child_is_its_own(server, code):
    server.fork("leave", code=code)
    pid = server.hear().pid
    assert server.hear() == Exited(pid=pid, code=code)


def test_an_error_is_told_through_the_childs_own_channel(server):
    channel = server.fork("fail")
    pid = server.hear().pid
    (line,) = read_all(channel)
    assert FROM_PROCESS.validate_json(line) == Failed(
        trouble=Trouble(
            "ValueError: nothing works", "other", "ValueError in worker.agent.forkserver._child"
        )
    )
    assert server.hear() == Exited(pid=pid, code=1)


def test_an_error_that_a_user_can_cause_is_told_as_its_sentence_alone(server):
    channel = server.fork("refuse")
    pid = server.hear().pid
    (line,) = read_all(channel)
    assert FROM_PROCESS.validate_json(line).trouble.sentence == "HEDDLE_WIRE asks for nccl"
    assert server.hear() == Exited(pid=pid, code=1)


def test_an_entry_that_is_not_there_is_an_error_of_the_child_alone(server):
    channel = server.fork("nowhere")
    server.hear()
    assert "has no attribute 'nowhere'" in "".join(read_all(channel))
    assert server.hear().code == 1
    server.fork("leave", code=0)
    assert isinstance(server.hear(), Forked)


def test_a_killed_child_is_told_by_its_signal(server):
    channel = server.fork("stay")
    pid = server.hear().pid
    assert channel.recv(16) == b"here\n"
    os.kill(pid, signal.SIGKILL)
    assert server.hear() == Exited(pid=pid, code=-signal.SIGKILL)
    channel.close()


def test_children_may_be_many(server):
    channels = [server.fork("stay", key=key) for key in range(5)]
    assert {server.hear().key for _ in channels} == set(range(5))
    assert {channel.recv(16) for channel in channels} == {b"here\n"}
    for channel in channels:
        channel.close()


@pytest.mark.parametrize("how", ["killed", "its agent is gone"])
def test_no_child_outlives_the_server(server, how):
    channel = server.fork("stay")
    server.hear()
    assert channel.recv(16) == b"here\n"
    if how == "killed":
        server.process.kill()
    else:
        server.control.close()
    assert channel.recv(16) == b""  # the child's end has closed: it is gone
    channel.close()
    assert server.process.wait(LIMIT_S) == (-signal.SIGKILL if how == "killed" else 0)


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("HEDDLE_TEST_THREAD", "the fork server has 2 threads, its children would hang"),
        (
            "HEDDLE_TEST_CUDA",
            "the fork server has initialised CUDA, its children could make no call of it",
        ),
    ],
)
def test_it_refuses_to_fork_with_a_second_thread_or_once_cuda_was_used(setting, error):
    threaded = Server("-c", LIGHT, **{setting: "1"})
    try:
        assert threaded.hear() == Warm()
        channel = threaded.fork("tell", key=4)
        assert threaded.hear() == ForkRefused(key=4, error=error)
        assert read_all(channel) == []
    finally:
        threaded.close()


@pytest.fixture
def limited():
    """(a fork server, what limits the processes of its user, the pid of its child that does so)."""
    user = {} if os.getuid() else {"HEDDLE_TEST_USER": str(UNUSED_USER)}
    found = Server("-c", LIGHT, **user)
    assert found.hear() == Warm()
    channel = found.fork("limit")

    def limit(most):
        channel.sendall(f"{most}\n".encode())
        assert int(channel.recv(16)) == most

    with channel:
        yield found, limit, found.hear().pid
    found.close()


def test_one_that_cannot_fork_says_so_and_its_children_live_on(limited):
    server, limit, child = limited
    limit(1)
    refused = server.fork("tell", key=2)
    assert server.hear() == ForkRefused(key=2, error=NO_PROCESS)
    assert read_all(refused) == []
    limit(-1)
    os.kill(child, 0)  # it is there
    server.fork("leave", key=3, code=0)
    assert server.hear().key == 3


def test_an_agent_tells_of_each_rank_that_could_not_be_forked_and_forks_the_store_again(limited):
    server, limit, _ = limited
    settings = AgentSettings(
        job="tiny", pod="tiny-a-0", node="a", gpus=1, host="127.0.0.1", token="secret",
        rank_entry=f"{ENTRIES}:live",
    )  # fmt: skip

    async def until(agent, claim):
        async with asyncio.timeout(LIMIT_S):
            while not claim(report := agent.report()):
                await agent.wait_past(report.version, LIMIT_S)
        return report

    async def main():
        server.control.setblocking(False)
        agent = Agent(settings, ForkServer(server.process, server.control))
        await agent.start()
        try:
            agent.warmed()  # as the server has said already
            for epoch in (1, 2):
                agent.directives.add(change(None, plan("1x2"), epoch=epoch))
                agent._fork_missing_ranks()
                found = await until(agent, lambda report, count=epoch: len(report.exits) == count)
            limit(-1)
            return found, await until(agent, lambda report: report.store_pid)
        finally:
            await agent.close()

    limit(1)
    found, _ = asyncio.run(main())
    told = {(gone.slot, gone.code, gone.error, gone.error_kind) for gone in found.exits}
    assert told == {(0, 1, NO_PROCESS, "other")}
    assert len({gone.pid for gone in found.exits}) == 2  # the operator knows exits by their pids
    assert found.ranks == ()


def test_with_torch_and_deepspeed_imported_it_still_has_one_thread():
    real = Server(*REAL)
    try:
        assert real.hear() == Warm()
        assert len(list(Path(f"/proc/{real.process.pid}/task").iterdir())) == 1
        real.fork("leave", code=0)
        assert isinstance(real.hear(), Forked)
    finally:
        real.close()


def test_one_whose_agent_is_gone_already_ends_before_it_imports_anything():
    orphan = Server("-c", LIGHT, agent=1)
    try:
        assert orphan.process.wait(LIMIT_S) == 1
    finally:
        orphan.close()
