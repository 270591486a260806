"""The processes of a pod: its fork server, and through that a store and one rank for each GPU.

A `Supervisor` hears what becomes of them; it decides what to fork, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from dataclasses import dataclass, field
from typing import Any, Protocol

from planner.background import Background
from planner.wording import cut, first_line
from worker.agent.compute_times import ComputeTimes
from worker.agent.fork_server_start import ForkServer, start_fork_server
from worker.agent.forkserver import MESSAGE_BYTES
from worker.agent.heartbeat import Heartbeat
from worker.contract import RankExit, RankReport
from worker.control.messages import (
    FROM_FORK_SERVER,
    FROM_PROCESS,
    Beat,
    Exited,
    Fork,
    Forked,
    ForkRefused,
    FromProcess,
    ToProcess,
    Warm,
)
from worker.error_kinds import Trouble

LOG = logging.getLogger(__name__)
LINE_BYTES = 1 << 20  # of a message of a process at most; a report has some hundred
WORDS_MOST = 200  # characters of what is wrong with a message
REAP_S = 2.0  # after a process has closed its channel, for the fork server to tell its exit status


@dataclass(slots=True, kw_only=True)
class Process:
    """A forked process: a rank in a slot, or the store (slot None).

    Attributes:
        pid: 0 until the fork server has answered.
        report: the newest that it sent.
        heartbeat: what its heartbeats say.
        step_s: of its slowest step, seconds.
        computing: what its steps took without waiting.
        trouble: what ended it, or is about to.
    """

    slot: int | None
    writer: asyncio.StreamWriter
    pid: int = 0
    report: RankReport | None = None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    step_s: float = 0.0
    computing: ComputeTimes = field(default_factory=ComputeTimes)
    trouble: Trouble = field(default_factory=Trouble)

    def tell(self, message: ToProcess) -> None:
        """Send it one message, unless it does not run yet."""
        if self.pid:
            self.writer.write(message.to_line())

    def beat(self, message: Beat) -> None:
        """Take over a heartbeat of a rank."""
        trains = self.report is not None and self.report.phase == "training"
        self.heartbeat.beat(message.progress, message.part, waiting=message.waiting, trains=trains)

    def alive_report(self) -> RankReport | None:
        """Its newest report with what its heartbeats say, if it has sent one."""
        if self.report is None:
            return None
        heartbeat = self.heartbeat
        return self.report.model_copy(
            update={
                "beat_age_s": heartbeat.silent_s if heartbeat.has_beaten else 0.0,
                "part": heartbeat.part,
                "progress": heartbeat.progress,
                "waiting": heartbeat.waiting,
                "compute_s": self.computing.median_s(self.report.epoch),
            }
        )

    def exited(self, code: int, at_s: float) -> RankExit:
        """The end of a rank, with its exit status or minus the signal."""
        assert self.slot is not None
        report, trouble = self.report, self.trouble
        if report is not None and trouble.sentence is None:
            trouble = Trouble(report.error, report.error_kind, report.error_site)
        return RankExit(
            slot=self.slot,
            pid=self.pid,
            code=code,
            at_s=at_s,
            error=trouble.sentence,
            error_kind=trouble.kind,
            error_site=trouble.site,
            epoch=report.epoch if report else None,
            step=report.step if report else 0,
        )

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens if it is gone."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Supervisor(Protocol):
    """Listener for the fate of the processes."""

    def warmed(self) -> None:
        """The fork server can fork."""

    def forked(self, process: Process) -> None:
        """A process runs and can be told something."""

    def heard(self, process: Process, message: FromProcess) -> None:
        """A process said something."""

    def refused(self, process: Process) -> None:
        """A process could not be made; its error says why."""

    def exited(self, process: Process, code: int) -> None:
        """A process ended, with its exit status or minus the signal."""

    def lost(self, code: int) -> None:
        """The fork server ended, and with it every process."""


class Processes:
    """The fork server of a pod and what it has forked; all methods run on its event loop."""

    def __init__(
        self, supervisor: Supervisor, host: str, fork_server: ForkServer | None = None
    ) -> None:
        self._supervisor, self._host = supervisor, host
        self._by_key: dict[int, Process] = {}
        self._next_key = 0
        self._fork_server = fork_server
        self._background = Background()
        self.fork_server_heartbeat = Heartbeat()

    @property
    def fork_server_pid(self) -> int | None:
        """None before `start`."""
        return self._fork_server.process.pid if self._fork_server else None

    @property
    def ranks(self) -> list[Process]:
        """The rank processes that live."""
        return [process for process in self._by_key.values() if process.slot is not None]

    @property
    def all(self) -> list[Process]:
        """The processes that live, or that the fork server was asked for."""
        return list(self._by_key.values())

    @property
    def store(self) -> Process | None:
        """The store's process, if it lives."""
        return next((p for p in self._by_key.values() if p.slot is None), None)

    async def start(self) -> None:
        """Start the fork server, unless it was; everything else follows from its messages."""
        if self._fork_server is None:
            self._fork_server = start_fork_server(self._host)
        asyncio.get_running_loop().add_reader(
            self._fork_server.control, self._receive_from_fork_server
        )
        self._background.start(self._watch_fork_server(), "watch the fork server")

    async def close(self) -> None:
        """Kill what is left, and wait until it is gone."""
        if self._fork_server is not None:
            self._fork_server.process.kill()
            await asyncio.to_thread(self._fork_server.process.wait)
        self._background.cancel()

    def kill_fork_server(self, sentence: str) -> None:
        """End the pod's processes; the supervisor hears of it."""
        LOG.error("%s", sentence)
        if self._fork_server is not None:
            self._fork_server.process.kill()

    def fork(self, slot: int | None, entry: str, arguments: dict[str, Any]) -> None:
        """Ask for a process that runs `entry`, a `module:function`."""
        work = self._fork_and_receive(slot, entry, arguments)
        self._background.start(work, f"hear {entry}")

    async def _watch_fork_server(self) -> None:
        assert self._fork_server is not None
        self._supervisor.lost(await asyncio.to_thread(self._fork_server.process.wait))

    async def _fork_and_receive(
        self, slot: int | None, entry: str, arguments: dict[str, Any]
    ) -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
        key = self._next_key
        self._next_key += 1
        process = Process(slot=slot, writer=writer)
        self._by_key[key] = process
        request = Fork(key=key, entry=entry, arguments=arguments).to_line()
        assert self._fork_server is not None
        try:
            socket.send_fds(self._fork_server.control, [request], [theirs.fileno()])
        except OSError as error:
            LOG.error("cannot reach the fork server: %s", error)
            del self._by_key[key]
            return
        finally:
            theirs.close()
        await self._receive(process, reader)
        await asyncio.sleep(REAP_S)
        if key in self._by_key and process.pid:  # it is gone, and the fork server says nothing
            self._remove_exited(process.pid, -signal.SIGKILL)

    async def _receive(self, process: Process, reader: asyncio.StreamReader) -> None:
        """Hear a process until it closes its channel; one that cannot be read is killed."""
        try:
            while line := await reader.readline():
                self._supervisor.heard(process, FROM_PROCESS.validate_json(line))
        except ConnectionError:  # it was killed with words of ours unread
            return
        except Exception as error:  # else its heartbeats would be lost, and it be taken for silent
            name = "the store" if process.slot is None else f"the rank on GPU {process.slot}"
            words = cut(first_line(error), WORDS_MOST)
            sentence = f"a message of {name} could not be read, and it was killed: {words}"
            LOG.exception("%s", sentence)
            process.trouble = Trouble(sentence, "other")
            process.signal(signal.SIGKILL)

    def _receive_from_fork_server(self) -> None:
        assert self._fork_server is not None
        control = self._fork_server.control
        try:
            data = control.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(control)
            return
        message = FROM_FORK_SERVER.validate_json(data)
        self.fork_server_heartbeat.beat(0, "", waiting=True, trains=False)
        match message:
            case Warm():
                self._supervisor.warmed()
            case Forked():
                process = self._by_key[message.key]
                process.pid = message.pid
                self._supervisor.forked(process)
            case ForkRefused():
                LOG.error("%s", message.error)
                process = self._by_key.pop(message.key)
                process.trouble = Trouble(message.error, "other")
                process.writer.close()
                self._supervisor.refused(process)
            case Exited():
                self._remove_exited(message.pid, message.code)

    def _remove_exited(self, pid: int, code: int) -> None:
        key = next((key for key, process in self._by_key.items() if process.pid == pid), None)
        if key is not None:
            process = self._by_key.pop(key)
            process.writer.close()
            self._supervisor.exited(process, code)
