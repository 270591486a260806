"""The agent of a worker pod (PID 1).

Supervises the pod's processes and answers the contract over HTTP; it calls nobody.

It owns a fork server, through that a store process and one rank process per GPU, and no state of
the training: everything it says comes from its processes or from the newest directive.  When its
fork server dies the pod is lost, and it exits.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from worker.agent.admission import Refused, admit, advances, read_directive
from worker.agent.forkserver import ENVIRONMENT, MESSAGE_BYTES
from worker.contract import Directive, RankExit, RankReport, Report, StepRecord, SwitchRecord

_log = logging.getLogger(__name__)
RANK_ENTRY = "worker.rank.process:main"
STORE_ENTRY = "worker.control.store:main"
STEPS_KEPT = 4096
EXITS_KEPT = 64
RELEASE_BEFORE_S = 5.0  # a leaving pod trains on until this long before its end


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What an agent is told at its start."""

    job: str
    pod: str
    node: str
    gpus: int
    host: str
    token: str
    emulate: bool = False
    timeout_s: float = 10.0
    grace_s: float = 30.0
    rank_entry: str = RANK_ENTRY


@dataclass(slots=True)
class _Process:
    """A forked process: a rank in a slot, or the store (slot None)."""

    slot: int | None
    writer: asyncio.StreamWriter
    pid: int = 0
    report: RankReport | None = None
    error: str | None = None


@dataclass(slots=True)
class Agent:
    """State of the pod, as the report shows it.  One instance per process.

    All methods run on its event loop.
    """

    settings: AgentSettings
    started_s: float = field(default_factory=time.monotonic)
    version: int = 1
    warm: bool = False
    store_address: str | None = None
    leaving_at_s: float | None = None
    directive: Directive | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    exit_code: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _processes: dict[int, _Process] = field(default_factory=dict)  # by fork key
    _next_key: int = 0
    # (epoch, slot): once is enough, a crash loop helps nobody
    _forked: set[tuple[int, int]] = field(default_factory=set)
    _control: socket.socket | None = None
    _fork_server: asyncio.subprocess.Process | None = None
    _exits: collections.deque[RankExit] = field(
        default_factory=lambda: collections.deque(maxlen=EXITS_KEPT)
    )
    _steps: collections.deque[StepRecord] = field(
        default_factory=lambda: collections.deque(maxlen=STEPS_KEPT)
    )
    _switches: collections.deque[SwitchRecord] = field(
        default_factory=lambda: collections.deque(maxlen=STEPS_KEPT)
    )
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    # -- life

    async def start(self) -> None:
        """Start the fork server; everything else follows from its messages."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._control = ours
        environment = {**os.environ, **ENVIRONMENT}
        if self.settings.host in ("127.0.0.1", "::1"):
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._fork_server = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "worker", "forkserver", "--control-fd", str(theirs.fileno()),
            "--agent-pid", str(os.getpid()),
            pass_fds=[theirs.fileno()], env=environment, stdin=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        asyncio.get_running_loop().add_reader(ours, self._receive_from_fork_server)
        self._spawn(self._watch_fork_server())

    async def _watch_fork_server(self) -> None:
        assert self._fork_server is not None
        code = await self._fork_server.wait()
        if not self.stopping.is_set():
            _log.error("the fork server ended with %d; the pod is lost", code)
            self.stop(1)

    def stop(self, code: int = 0) -> None:
        """End the pod: the ranks die with the fork server."""
        self.exit_code = code
        self.stopping.set()

    def end(self) -> None:
        """The job has ended: end the pod, well if no rank of it has anything left to train."""
        self.stop(1 if self._unfinished_ranks() else 0)

    async def close(self) -> None:
        """Kill what is left, and wait until it is gone."""
        if self._fork_server is not None:
            with contextlib.suppress(ProcessLookupError):
                self._fork_server.kill()
            await self._fork_server.wait()
        for task in self._tasks:
            task.cancel()

    def notice(self) -> None:
        """SIGTERM: train on until released or shortly before the grace ends.

        End at once if no rank has anything left to train.
        """
        if self._unfinished_ranks():
            self.leaving_at_s = time.monotonic() + self.settings.grace_s
            asyncio.get_running_loop().call_later(
                max(0.0, self.settings.grace_s - RELEASE_BEFORE_S), self.stop
            )
            self.changed()
        else:
            self.stop()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- processes

    def _fork(self, slot: int | None, entry: str, arguments: dict[str, Any]) -> None:
        self._spawn(self._fork_and_receive(slot, entry, arguments))

    async def _fork_and_receive(
        self, slot: int | None, entry: str, arguments: dict[str, Any]
    ) -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        key = self._next_key
        self._next_key += 1
        process = _Process(slot, writer)
        self._processes[key] = process
        request = json.dumps({"fork": key, "entry": entry, "arguments": arguments}).encode()
        assert self._control is not None
        try:
            socket.send_fds(self._control, [request], [theirs.fileno()])
        except OSError as error:
            _log.error("cannot reach the fork server: %s", error)
            del self._processes[key]
            return
        finally:
            theirs.close()
        with contextlib.suppress(ConnectionError):  # it was killed with words of ours unread
            while line := await reader.readline():
                self._receive(process, json.loads(line))

    def _receive_from_fork_server(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            return
        message = json.loads(data)
        if "warm" in message:
            self.warm = True
            self._fork(None, STORE_ENTRY, {"host": self.settings.host})
            self._fork_missing_ranks()
        elif "forked" in message:
            self._processes[message["forked"]].pid = message["pid"]
            self._send_directive(self._processes[message["forked"]])
        elif "refused" in message:
            _log.error("%s", message["error"])
            self._processes.pop(message["refused"], None)
        elif "exited" in message:
            self._remove_exited(message["exited"], message["code"])
        self.changed()

    def _remove_exited(self, pid: int, code: int) -> None:
        key = next((key for key, process in self._processes.items() if process.pid == pid), None)
        if key is None:
            return
        process = self._processes.pop(key)
        process.writer.close()
        if process.slot is None:
            self.store_address = None
            if self.warm and not self.stopping.is_set():
                self._fork(None, STORE_ENTRY, {"host": self.settings.host})
            return
        at_s = time.monotonic()
        error = process.error or (process.report.error if process.report else None)
        self._exits.append(RankExit(slot=process.slot, pid=pid, code=code, at_s=at_s, error=error))
        self._fork_missing_ranks()
        self._end_if_finished()

    def _receive(self, process: _Process, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "step":
            record = StepRecord.model_validate(message["record"])
            if process.slot == min(self._live_ranks(), default=process.slot):
                self._steps.append(record)
            if process.report is not None:  # a further step alone is no change of version
                process.report = process.report.model_copy(update={"step": record.step + 1})
            return
        if kind == "report":
            process.report = RankReport.model_validate(message["rank"])
            self._end_if_finished()
        elif kind == "switch":
            self._switches.append(SwitchRecord.model_validate(message["record"]))
        elif kind == "store":
            self.store_address = message["address"]
        elif kind == "error":
            process.error = message["error"].strip().splitlines()[-1]
        self.changed()

    def _live_ranks(self) -> set[int]:
        return {process.slot for process in self._processes.values() if process.slot is not None}

    def _unfinished_ranks(self) -> set[int]:
        """Ranks that somebody may still need: all but those that trained the last step."""
        finished = {
            p.slot for p in self._processes.values() if p.report and p.report.phase == "done"
        }
        return self._live_ranks() - finished

    def _end_if_finished(self) -> None:
        if self.leaving_at_s is not None and not self._unfinished_ranks():
            self.stop()

    # -- directives

    def accept(self, body: object) -> Refused | None:
        """Follow a directive, or say why not; the running epoch is untouched by a refused one."""
        directive = read_directive(body)
        if isinstance(directive, Refused):
            return directive
        refused = admit(self.directive, directive, self.settings.job)
        if refused is not None:
            return refused
        if advances(self.directive, directive):
            self.directive = directive
            for process in self._processes.values():
                self._send_directive(process)
            self._fork_missing_ranks()
            self.changed()
        return None

    def _send_directive(self, process: _Process) -> None:
        """Pass the newest directive to a rank."""
        if process.slot is not None and process.pid and self.directive is not None:
            data = {"type": "directive", "directive": self.directive.model_dump(mode="json")}
            process.writer.write(json.dumps(data).encode() + b"\n")

    def _fork_missing_ranks(self) -> None:
        """A new rank for each of this pod's members that holds nothing and has no process yet."""
        directive = self.directive
        if directive is None or directive.phase == "abort" or not self.warm:
            return
        live, settings = self._live_ranks(), self.settings
        for member in directive.members:
            mine = member.pod == settings.pod and member.rank is not None and member.holds is None
            if (
                mine
                and member.slot not in live
                and (directive.epoch, member.slot) not in self._forked
            ):
                self._forked.add((directive.epoch, member.slot))
                arguments = {"pod": settings.pod, "slot": member.slot, "emulate": settings.emulate}
                self._fork(
                    member.slot, settings.rank_entry, {**arguments, "timeout_s": settings.timeout_s}
                )

    # -- the report

    def changed(self) -> None:
        """Something other than a further step happened.

        Whoever waits for a newer report gets it.
        """
        self.version += 1
        self._spawn(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def wait_past(self, version: int, wait_s: float) -> None:
        """Return when the version passes `version`, or after `wait_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self.version > version)

    def report(self, steps_from: int = 0) -> Report:
        """The pod as it is now."""
        directive = self.directive
        ranks = [p.report for p in self._processes.values() if p.report is not None]
        store = next((p for p in self._processes.values() if p.slot is None), None)
        return Report(
            job=self.settings.job,
            pod=self.settings.pod,
            node=self.settings.node,
            version=self.version,
            agent_pid=os.getpid(),
            agent_started_s=self.started_s,
            fork_server_pid=self._fork_server.pid if self._fork_server else None,
            store_pid=store.pid if store else None,
            store=self.store_address,
            ready=self.warm and self.store_address is not None,
            leaving_at_s=self.leaving_at_s,
            epoch=directive.epoch if directive else None,
            phase=directive.phase if directive else None,
            plan_digest=directive.plan_digest if directive else None,
            ranks=tuple(sorted(ranks, key=lambda rank: rank.slot)),
            exits=tuple(self._exits),
            steps=tuple(step for step in self._steps if step.step >= steps_from),
            switches=tuple(self._switches),
        )


def terminate_on(agent: Agent, exit_with_parent: bool) -> None:
    """Bind the signals of a pod, and, if asked, the end of standard input, to the agent's life."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, agent.notice)
    loop.add_signal_handler(signal.SIGINT, agent.stop)
    if exit_with_parent:

        def parent_gone() -> None:
            if not os.read(0, 4096):
                loop.remove_reader(0)
                agent.stop()

        try:
            loop.add_reader(0, parent_gone)
        except OSError:  # a file, or nothing: it is at its end, and nobody can wait for that
            agent.stop()
