"""Kills the processes of a pod that are silent or stuck, and says why.

The kernel then closes their connections, so that their peers notice and the job can recover.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable

from worker.agent.directives import Directives
from worker.agent.processes import Process, Processes
from worker.contract import READING, READING_S
from worker.error_kinds import Trouble

LOG = logging.getLogger(__name__)
LOOK_S = 0.25  # between two looks
STACKS_S = 2.0  # for a stuck rank to write its stacks
NAMED = 3  # data sets of a rank that waits for them


class Watchdog:
    """Looks at the heartbeats of a pod's ranks, of its store and of its fork server."""

    def __init__(
        self,
        processes: Processes,
        directives: Directives,
        *,
        pod: str,
        peer_timeout_s: float,
        stuck_s: float,
        changed: Callable[[], None],
    ) -> None:
        """Watch `processes`; see `AgentSettings` for the times.

        `changed` is called when a report has changed.
        """
        self._processes, self._directives, self._pod = processes, directives, pod
        self._peer_timeout_s, self._stuck_s, self._changed = peer_timeout_s, stuck_s, changed
        self._readers: set[int] = set()  # pids of ranks whose long wait for data was told

    async def run(self) -> None:
        """Look until cancelled; while this process itself stands still no time passes."""
        seen_s = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            self.look(min(now_s - seen_s, 2 * LOOK_S))
            seen_s = now_s

    def look(self, passed_s: float) -> None:
        """Judge every process, `passed_s` seconds after the last look.

        The fork server's death is that of the pod's ranks, so one with ranks is left alone.
        """
        fork_server = self._processes.fork_server_heartbeat
        fork_server.pass_time(passed_s)
        if fork_server.is_silent(self._peer_timeout_s) and not self._processes.ranks:
            self._processes.kill_fork_server(
                f"the fork server sent no heartbeat for {fork_server.silent_s:.0f} s and was killed"
            )
        for process in self._processes.all:
            process.heartbeat.pass_time(passed_s)
            if process.heartbeat.is_silent(self._peer_timeout_s):
                self._kill_silent(process)
            elif self._is_stuck(process):
                self._kill_stuck(process)
            else:
                self._tell_of_reading(process)

    def _kill_silent(self, process: Process) -> None:
        sentence = (
            f"{self._name(process)} sent no heartbeat for {self._peer_timeout_s:g} s and was killed"
        )
        if self._blame(process, Trouble(sentence, "lost peer")):
            process.signal(signal.SIGKILL)

    def _kill_stuck(self, process: Process) -> None:
        heartbeat = process.heartbeat
        reads = self._data_of(process) if heartbeat.part == READING else ""
        sentence = (
            f"{self._name(process)} made no progress for {heartbeat.still_s:.0f} s "
            f"in {heartbeat.part!r}{reads}, waited for no peer and was killed; "
            f"its stacks are in the log of pod {self._pod}"
        )
        if self._blame(process, Trouble(sentence, "other")):
            process.signal(signal.SIGUSR1)
            asyncio.get_running_loop().call_later(STACKS_S, process.signal, signal.SIGKILL)

    def _tell_of_reading(self, process: Process) -> None:
        """Log once that a rank waits for its data: no error, for the disk may come back."""
        heartbeat = process.heartbeat
        if heartbeat.part != READING or heartbeat.still_s <= self._stuck_s:
            self._readers.discard(process.pid)
        elif process.pid not in self._readers:
            self._readers.add(process.pid)
            LOG.warning(
                "%s has waited %.0f s for its data%s; it is killed after %.0f s",
                self._name(process),
                heartbeat.still_s,
                self._data_of(process),
                READING_S,
            )

    def _data_of(self, process: Process) -> str:
        """Paths of the data that a rank reads, in brackets; "" while its directive is not known."""
        directive = self._directives.of(process.report)
        if directive is None:
            return ""
        paths = [repr(corpus.path) for corpus in directive.training.data.blend]
        more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
        return f" ({', '.join(paths[:NAMED])}{more})"

    def _blame(self, process: Process, trouble: Trouble) -> bool:
        """Say what is wrong with a rank; False if that was said before."""
        if process.trouble.sentence is not None:
            return False
        LOG.error("%s", trouble.sentence)
        process.trouble = trouble
        if process.report is not None:
            update = dict(zip(("error", "error_kind", "error_site"), trouble, strict=True))
            process.report = process.report.model_copy(update=update)
        self._changed()
        return True

    def _name(self, process: Process) -> str:
        """A rank as its plan and its pod name it, or the store."""
        if process.slot is None:
            return f"the store of pod {self._pod}"
        place = f"GPU {process.slot} of pod {self._pod}"
        seat = self._directives.seat(process.report)
        return f"rank {seat.rank} (stage {seat.stage}, {place})" if seat else f"the rank on {place}"

    def _is_stuck(self, process: Process) -> bool:
        """A step takes what was predicted or what was measured, whichever is longer."""
        directive = self._directives.of(process.report)
        predicted_s = (directive.step_s if directive else None) or 0.0
        step_s = max(process.step_s, predicted_s)
        return process.heartbeat.is_stuck(self._stuck_s, step_s, has_trained=process.step_s > 0)
