"""The agent of a worker pod (PID 1).

Supervises the pod's processes and answers the contract over HTTP; it calls nobody.

It owns a fork server, through that a store process and one rank process per GPU, and no state of
the training: everything it says comes from its processes or from its directives.  When its fork
server dies the pod is lost, and it exits.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from planner.background import Background
from worker.agent.admission import Refused, admit, advances, read_directive, read_halt
from worker.agent.checkpoint_look import CheckpointLook
from worker.agent.directives import Directives
from worker.agent.folders import questions
from worker.agent.fork_server_start import ForkServer
from worker.agent.measuring.measurements import Measurements, ModelUse
from worker.agent.processes import Process, Processes
from worker.agent.records import Records
from worker.agent.watchdog import Watchdog
from worker.contract import (
    EXITS_KEPT,
    RELEASE_BEFORE_S,
    Directive,
    EvaluationRecord,
    RankExit,
    Report,
    StepRecord,
)
from worker.control import messages
from worker.control.secret import store_key
from worker.gpu_wire import WireName

LOG = logging.getLogger(__name__)
RANK_ENTRY = "worker.rank.process:main"
STORE_ENTRY = "worker.control.store:main"
STORE_AGAIN_S = 1.0  # after the fork server could not fork one


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of an agent at its start.

    Attributes:
        emulate: each rank waits until the time of its GPU type's profile has passed.
        device: of the ranks, cpu or cuda.
        wire: of the ranks.
        peer_timeout_s: silence of a rank after which it is lost.
        grace_s: from SIGTERM to the end of the pod.
        peak_flops_s: of one rank of this machine, for GPU types without a data sheet.
        stuck_s: a training rank without progress for so long, and for ten steps, is stuck.
    """

    job: str
    pod: str
    node: str
    gpus: int
    host: str
    token: str
    emulate: bool = False
    device: str = "cpu"
    wire: WireName = "gloo"
    peer_timeout_s: float = 10.0
    grace_s: float = 30.0
    stuck_s: float = 30.0
    peak_flops_s: float | None = None
    rank_entry: str = RANK_ENTRY


class Agent:
    """State of the pod, as the report shows it.  One instance per process.

    All methods run on its event loop.

    Args:
        settings: what it is told once.
        fork_server: that runs already; None: `start` starts one.
    """

    def __init__(self, settings: AgentSettings, fork_server: ForkServer | None = None) -> None:
        self.settings = settings
        self.started_s = time.monotonic()
        self.version = 1
        self.warm = False
        self.store_address: str | None = None
        self.leaving_at_s: float | None = None
        self.stopping = asyncio.Event()
        self.exit_code = 0
        self.directives = Directives(settings.pod)
        self.processes = Processes(self, settings.host, fork_server)
        self._watchdog = Watchdog(
            self.processes,
            self.directives,
            pod=settings.pod,
            peer_timeout_s=settings.peer_timeout_s,
            stuck_s=settings.stuck_s,
            changed=self.changed,
        )
        self._changed = asyncio.Condition()
        self._forked: set[tuple[int, int]] = set()  # (epoch, slot): a crash loop helps nobody
        self._checked_folders: set[tuple[str, str]] = set()  # (use, folder)
        self._measurements: Measurements | None = None
        self._use = ModelUse(settings.peak_flops_s, settings.emulate)
        self._exits: collections.deque[RankExit] = collections.deque(maxlen=EXITS_KEPT)
        self._refusals = 0  # of ranks that the fork server could not fork
        self._records = Records()
        self.look = CheckpointLook(self.changed)
        self._background = Background()

    # -- life

    async def start(self) -> None:
        """Start the fork server; everything else follows from its messages."""
        await self.processes.start()
        self._background.start(self._watchdog.run(), "watchdog")

    def stop(self, code: int = 0) -> None:
        """End the pod: the ranks die with the fork server."""
        self.exit_code = code
        self.stopping.set()

    def end(self) -> None:
        """The job has ended: end the pod, well if its ranks of the newest epoch are done.

        One that died is not; one that waits to join holds nothing and is not asked.
        """
        done = {process.slot for process in self.processes.ranks if _is_done(process)}
        self.stop(1 if self.directives.seated_slots - done else 0)

    async def close(self) -> None:
        """Kill what is left, and wait until it is gone."""
        self._background.cancel()
        await self.processes.close()
        if self._measurements is not None:
            self._measurements.close()

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

    def _unfinished_ranks(self) -> bool:
        """Whether a rank lives that somebody may still need: one that is not done."""
        return not all(_is_done(process) for process in self.processes.ranks)

    def _end_if_finished(self) -> None:
        if self.leaving_at_s is not None and not self._unfinished_ranks():
            self.stop()

    # -- what becomes of the processes; see `Supervisor`

    def warmed(self) -> None:
        """The fork server can fork."""
        self.warm = True
        self._fork_store()
        self._fork_missing_ranks()
        self.changed()

    def forked(self, process: Process) -> None:
        """A process runs: a rank hears the newest directive."""
        self._send_directive(process)
        self.changed()

    def _fork_server_lost(self) -> bool:
        """Whether the fork server is silent: no rank could be forked here."""
        return self.processes.fork_server_heartbeat.is_silent(self.settings.peer_timeout_s)

    def heard(self, process: Process, message: messages.FromProcess) -> None:
        """A process said something."""
        match message:
            case messages.Beat():
                process.beat(message)
                return  # nobody waits for a heartbeat
            case messages.Stepped():
                process.computing.add(message.record.epoch, message.compute_s)
                self._add_step(process, message.record)
                return
            case messages.Reported():
                process.report = message.rank
                self.directives.heard(process.report)
                self._end_if_finished()
            case messages.Evaluated():
                self._write(process, message.record)
                self._records.add_evaluation(message.record)
            case messages.Switched():
                self._records.switches.append(message.record)
            case messages.Saved():
                self._records.saves.append(message.record)
            case messages.StoreListens():
                self.store_address = message.address
            case messages.Failed():
                process.trouble = message.trouble
        self.changed()

    def _add_step(self, process: Process, record: StepRecord) -> None:
        record = self._use.measured(record, self.directive)
        self._write(process, record)
        self._records.add_step(record)
        process.step_s = max(process.step_s, record.end_s - record.start_s)
        if process.report is not None:  # a further step alone is no change of version
            process.report = process.report.model_copy(update={"step": record.step + 1})

    def _write(self, process: Process, record: StepRecord | EvaluationRecord) -> None:
        """Rank 0 of the plan is the one whose records are written, wherever it is."""
        training = self.directive.training if self.directive else None
        if training is None or training.output is None:
            return
        if process.report is None or process.report.rank != 0:
            return
        if self._measurements is None:
            self._measurements = Measurements(Path(training.output), self._records, training.run)
        self._measurements.add(record)

    def refused(self, process: Process) -> None:
        """A process could not be made: a rank is told as one that ended, a store is tried again."""
        if process.slot is None:
            asyncio.get_running_loop().call_later(STORE_AGAIN_S, self._fork_store)
        else:
            self._refusals += 1  # each is news to the operator, which knows exits by their pid
            told = process.exited(1, time.monotonic())
            self._exits.append(told.model_copy(update={"pid": -self._refusals}))
        self.changed()

    def exited(self, process: Process, code: int) -> None:
        """A process ended: the store comes back, a rank if the newest directive wants it."""
        if process.slot is None:
            self.store_address = None
            if not self.stopping.is_set():
                self._fork_store()
        else:
            self._exits.append(process.exited(code, time.monotonic()))
            self._fork_missing_ranks()
            self._end_if_finished()
        self.changed()

    def lost(self, code: int) -> None:
        """The fork server ended, and with it every process."""
        if not self.stopping.is_set():
            LOG.error("the fork server ended with %d; the pod is lost", code)
            self.stop(1)

    # -- directives

    @property
    def directive(self) -> Directive | None:
        """The newest that this pod follows."""
        return self.directives.newest

    async def accept(self, body: object) -> Refused | None:
        """Follow a directive, or say why not; the running epoch is untouched by a refused one."""
        directive = read_directive(body)
        if isinstance(directive, Refused):
            return directive
        refused = admit(self.directive, directive, self.settings.job)
        refused = refused or await self._probe_folders(directive)
        # Another directive may have been accepted while the probe waited for a disk.
        refused = refused or admit(self.directive, directive, self.settings.job)
        if refused is None and advances(self.directive, directive):
            self.directives.add(directive)
            self.tell(messages.Follow(directive=directive))
            self._fork_missing_ranks()
            self.changed()
        return refused

    async def _probe_folders(self, directive: Directive) -> Refused | None:
        """Try each of the job's folders once; a recovery does not wait for that."""
        for what, question in questions(directive.training, self.settings.job).items():
            if what in self._checked_folders or directive.reason == "loss":
                continue
            problem = await question()
            if problem is not None:
                return Refused(400, problem)
            self._checked_folders.add(what)
        return None

    def halt(self, body: object) -> Refused | None:
        """Tell the ranks that a peer is lost which cannot say so itself."""
        halt = read_halt(body)
        if isinstance(halt, Refused):
            return halt
        self.tell(messages.HaltNow(epoch=halt.epoch, sentence=halt.reason))
        return None

    def tell(self, message: messages.ToProcess) -> None:
        """Tell all ranks that run."""
        for process in self.processes.ranks:
            process.tell(message)

    def _send_directive(self, process: Process) -> None:
        """Pass the newest directive to a rank."""
        if process.slot is not None and self.directive is not None:
            process.tell(messages.Follow(directive=self.directive))

    def _fork_store(self) -> None:
        arguments = {"host": self.settings.host, "key": store_key(self.settings.token)}
        self.processes.fork(None, STORE_ENTRY, arguments)

    def _fork_missing_ranks(self) -> None:
        """A new rank for each of this pod's members that holds nothing and has no process yet."""
        directive = self.directive
        if directive is None or directive.phase == "abort" or not self.warm:
            return
        settings = self.settings
        live = {process.slot for process in self.processes.ranks}
        for member in directive.members:
            mine = member.pod == settings.pod and member.rank is not None and member.holds is None
            key = (directive.epoch, member.slot)
            if mine and member.slot not in live and key not in self._forked:
                self._forked.add(key)
                arguments = {
                    "job": settings.job,
                    "pod": settings.pod,
                    "slot": member.slot,
                    "emulate": settings.emulate,
                    "device": settings.device,
                    "store_key": store_key(settings.token),
                }
                self.processes.fork(member.slot, settings.rank_entry, arguments)

    # -- the report

    def changed(self) -> None:
        """Something other than a further step or heartbeat happened.

        Whoever waits for a newer report gets it.
        """
        self.version += 1
        self._background.start(self._notify(), "notify")

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
        directive, store = self.directive, self.processes.store
        ranks = [rank for process in self.processes.ranks if (rank := process.alive_report())]
        return Report(
            job=self.settings.job,
            pod=self.settings.pod,
            node=self.settings.node,
            version=self.version,
            agent_pid=os.getpid(),
            agent_started_s=self.started_s,
            fork_server_pid=self.processes.fork_server_pid,
            store_pid=store.pid if store else None,
            store=self.store_address,
            ready=self.warm and self.store_address is not None and not self._fork_server_lost(),
            reads_columns=True,
            looks=True,
            wire=self.settings.wire,
            leaving_at_s=self.leaving_at_s,
            epoch=directive.epoch if directive else None,
            phase=directive.phase if directive else None,
            plan_digest=directive.plan_digest if directive else None,
            ranks=tuple(sorted(ranks, key=lambda rank: rank.slot)),
            exits=tuple(self._exits),
            steps=self._records.steps_from(steps_from),
            switches=tuple(self._records.switches),
            evaluations=self._records.evaluations_from(steps_from),
            checkpoints=self.look.answer,
            saves=tuple(self._records.saves),
        )


def _is_done(process: Process) -> bool:
    return process.report is not None and process.report.phase in ("suspended", "done")
