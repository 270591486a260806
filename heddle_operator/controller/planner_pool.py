"""Planner processes that all jobs of an operator share, each limited in time, all in memory.

A search that takes longer than its budget and `GRACE_S` is killed with its process, and its
question is answered with that.  Jobs take turns (search_turns).  The processes hold at most
`memory_bytes` together: whoever is above that is killed, and what it searched is searched once more
while nothing else is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from heddle_operator.controller.planner_server import HURRY, READY, SearchSettings
from heddle_operator.controller.search_turns import SearchTurns, Turn
from heddle_operator.state.actions import RequestPlan
from planner.cluster.composition import Composition
from planner.cores import GROUPS
from worker.contract import Reason

LOG = logging.getLogger(__name__)
Answer = dict[str, Any]
SIZE = 2
SHARE = (
    0.5  # of the memory of its container; the operator with its cache of the cluster has the rest
)
USUAL_BYTES = 1 << 30  # where nothing limits the container
GRACE_S = 10.0  # a search may take its budget and so much longer
WEIGH_S = 60.0  # for all searches of the curves of a job
USUAL_S = 60.0  # for a search that evaluations end
START_S = 300.0  # the estimator may have to be compiled first
LOOK_S = 0.2  # between two looks at the memory
LINE_BYTES = 1 << 24  # longest answer
# Ranks wait where nodes were lost, GPUs wait where a job is to start, and else nothing waits.
RANKS: Mapping[Reason, int] = {"loss": 0, "drain": 0, "start": 1, "join": 2}
NICER = 5  # than an operator: a third of the weight of what renews the Lease and answers probes


class SearchFailed(Exception):
    """A search has no answer; the message says why in a sentence."""


class GaveWay(SearchFailed):
    """A search ended early for an urgent one, and had no answer yet."""


class PlannerPool:
    """Searches plans in processes of its own, at most `size` at once.

    Args:
        size: processes.
        memory_bytes: that they may hold together; None: see `planner_memory_bytes`.
        grace_s: see `GRACE_S`.
        environment: variables beside this process's own.
        nicer: than this process, by the nice value of Unix: on a busy machine it has the CPU first.
    """

    def __init__(
        self,
        size: int = SIZE,
        memory_bytes: int | None = None,
        grace_s: float = GRACE_S,
        environment: Mapping[str, str] | None = None,
        nicer: int = 0,
    ) -> None:
        self._nicer = nicer
        self._size = size
        self._memory_bytes = planner_memory_bytes() if memory_bytes is None else memory_bytes
        self._grace_s = grace_s
        self._environment = {**os.environ, **(environment or {})}
        self._turns = SearchTurns(size)
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()

    async def start(self) -> None:
        """Start a process, so that the first question finds it warm."""
        async with self._process():
            pass

    async def search(self, settings: SearchSettings, action: RequestPlan, job: str) -> Answer:
        """Search a plan once it is the job's turn.

        Args:
            settings: of all searches of the job.
            action: asks for the plan.
            job: uid of the one that asks; each has one search in flight at most.

        Raises:
            SearchFailed: it took too long or too much memory, or its process ended.
            GaveWay: it is to be asked again.
        """
        question = {
            "settings": asdict(settings),
            "composition": action.composition.to_json(),
            "current": action.current.to_json() if action.current else None,
            "max_gpus": action.max_gpus.to_json(),
        }
        limit_s = (settings.budget_s or USUAL_S) + self._grace_s
        return await self._ask(question, limit_s, job, RANKS[action.reason])

    async def weigh(
        self, settings: SearchSettings, nodes: Composition, job: str, reason: Reason = "join"
    ) -> Answer:
        """Learn what GPUs of each type are worth, once it is the job's turn; see `search`.

        A start waits for it, and then it is as urgent as that.
        """
        question = {"settings": asdict(settings), "weigh": nodes.to_json()}
        return await self._ask(question, WEIGH_S + self._grace_s, job, RANKS[reason])

    async def _ask(self, question: Answer, limit_s: float, job: str, rank: int) -> Answer:
        try:
            async with self._turns.turn(job, rank=rank) as turn:
                return await self._search(question, limit_s, turn)
        except _TooLarge:
            LOG.info("a search that needs much memory is done again while nothing else is searched")
        try:
            async with self._turns.turn(job, self._size, rank) as turn:
                return await self._search(question, limit_s, turn)
        except _TooLarge:
            gib = self._memory_bytes / (1 << 30)
            raise SearchFailed(
                f"the search of a plan needs more than the {gib:.2g} GiB that planners may have; "
                "lower maxGPUs, or give the operator more memory (resources.limits.memory)"
            ) from None

    async def close(self) -> None:
        """End all processes."""
        for process in (*self._idle, *self._busy):
            await process.kill()
        self._idle.clear()

    async def _search(self, question: Answer, limit_s: float, turn: Turn) -> Answer:
        async with self._process() as process:
            watching = asyncio.create_task(self._watch_memory(), name="planner memory")
            try:
                async with asyncio.timeout(limit_s):
                    found = await process.ask(question, turn)
            except TimeoutError:
                raise SearchFailed(
                    f"the search of a plan did not end within {limit_s:g} s and was killed"
                ) from None
            finally:
                watching.cancel()
        if found.get("gave_way"):
            raise GaveWay("the search gave way to an urgent one before it had an answer")
        return found

    @contextlib.asynccontextmanager
    async def _process(self) -> AsyncIterator[_Process]:
        """An idle process, or a new one; one that did not answer is not used again."""
        process = self._idle.pop() if self._idle else _Process()
        self._busy.add(process)
        is_sound = False
        try:
            await process.start(self._environment, self._nicer)
            yield process
            is_sound = process.is_alive
        finally:
            # A warm process answers sooner, so it stays unless it would leave too little to others.
            share = self._memory_bytes / (self._size + 1)
            if is_sound and process.memory_bytes < share:
                self._busy.discard(process)
                self._idle.append(process)
            else:
                try:
                    await process.kill()
                finally:  # until then `close` waits for its end, too
                    self._busy.discard(process)

    async def _watch_memory(self) -> None:
        while True:
            if self._held_bytes > self._memory_bytes:
                for process in self._idle:
                    await process.kill()
                self._idle.clear()
            if self._held_bytes > self._memory_bytes:
                largest = max(self._busy, key=lambda process: process.memory_bytes)
                largest.is_too_large = True
                await largest.kill()
            await asyncio.sleep(LOOK_S)

    @property
    def _held_bytes(self) -> int:
        return sum(process.memory_bytes for process in (*self._idle, *self._busy))


class _TooLarge(Exception):
    """The process was killed for its memory."""


class _Process:
    """One planner_server."""

    def __init__(self) -> None:
        self.is_too_large = False
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, environment: Mapping[str, str], nicer: int) -> None:
        """Start it, unless it runs, and wait until it takes questions.

        Raises:
            SearchFailed: the machine starts none, it ends before, or it takes longer than START_S.
        """
        if self.is_alive:
            return
        try:
            await self._launch(environment, nicer)
            async with asyncio.timeout(START_S):
                ready = await self._line()
        except TimeoutError:
            raise SearchFailed(
                f"a planner process was not ready within {START_S:g} s and was killed"
            ) from None
        except OSError as error:
            raise SearchFailed(f"a planner process cannot be started: {error}") from None
        if ready.strip() != READY.encode():
            raise SearchFailed("a planner process did not start; the log has its words")

    async def _launch(self, environment: Mapping[str, str], nicer: int) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "heddle_operator.controller.planner_server",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(environment),
            limit=LINE_BYTES,
            start_new_session=True,
        )
        _lower_priority(self._process.pid, nicer)

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def memory_bytes(self) -> int:
        """Memory of the machine that it holds."""
        if self._process is None or not self.is_alive:
            return 0
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="utf-8").split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * resource.getpagesize()

    async def ask(self, question: Answer, turn: Turn) -> Answer:
        """Its answer, an early one where the turn is hurried.

        Raises:
            SearchFailed: it ended, or the answer is too long.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        turn.on_hurry(partial(self._process.stdin.write, HURRY + b"\n"))
        answer: Answer = json.loads(await self._line())
        return answer

    async def kill(self) -> None:
        """End it now."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        # Its pipes must not outlive the loop.  Whoever waits for its answer reads on to the end.
        with contextlib.suppress(OSError, RuntimeError):
            await process.stdin.wait_closed()
            await process.stdout.read()

    async def _line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError:
            raise SearchFailed("a planner's answer is longer than an answer may be") from None
        if not line:
            if self.is_too_large:
                raise _TooLarge
            code = await self._process.wait()
            raise SearchFailed(f"a planner process ended with {code}; the log has its words")
        return line


def _lower_priority(pid: int, nicer: int) -> None:
    """Of a child's first thread, which is all that it has yet: the others inherit from it."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(ProcessLookupError):  # it has ended: whoever reads from it is told
        os.setpriority(os.PRIO_PROCESS, pid, own + nicer)


def planner_memory_bytes(groups: Path = GROUPS) -> int:
    """`SHARE` of the memory limit of this process's container, or `USUAL_BYTES` without one.

    Args:
        groups: where cgroup v2 is mounted.
    """
    try:
        return int(SHARE * int((groups / "memory.max").read_text(encoding="utf-8")))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return USUAL_BYTES
