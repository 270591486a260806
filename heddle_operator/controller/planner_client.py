"""Plans are searched beside the loop: a question is an action, its answer part of a later Observed.

Source: design, section 5 ("Planning runs in a process pool"); one process, as answers are needed
one after the other.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict

from heddle_operator.controller.planner_server import SearchSettings
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.actions import RequestPlan
from heddle_operator.state.snapshot import PlanKey, PlanReply
from planner.plans.plan import Plan

LOG = logging.getLogger(__name__)
LINE_BYTES = 1 << 24  # longest answer


class PlannerClient:
    """One planner process and its answers; the next question starts a crashed one again."""

    def __init__(
        self,
        settings: SearchSettings,
        trigger: Trigger,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.replies: dict[PlanKey, PlanReply] = {}
        self._settings = settings
        self._trigger = trigger
        self._environment = {**os.environ, **(environment or {})}
        self._asked: dict[PlanKey, RequestPlan] = {}
        self._noted: set[str] = set()  # what the planner said already
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def in_flight(self) -> frozenset[PlanKey]:
        """What is searched for now."""
        return frozenset(self._asked)

    async def start(self) -> None:
        """Start the process, so that the first question finds it warm."""
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "heddle_operator.controller.planner_server"),
                json.dumps(asdict(self._settings)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=self._environment,
                limit=LINE_BYTES,
                start_new_session=True,
            )
            self._reader = asyncio.create_task(self._read(self._process), name="planner")

    def request(self, action: RequestPlan) -> None:
        """Ask for a plan, unless it is known or asked for."""
        if action.key in self.replies or action.key in self._asked:
            return
        self._asked[action.key] = action
        task = asyncio.create_task(self._ask(action), name="ask the planner")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End the process."""
        for task in (*self._tasks, self._reader):
            if task is not None:
                task.cancel()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _ask(self, action: RequestPlan) -> None:
        await self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        question = {
            "key": list(action.key),
            "composition": action.composition.to_json(),
            "current": action.current.to_json() if action.current else None,
        }
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        try:
            await self._process.stdin.drain()
        except ConnectionError:
            LOG.warning("the planner process ended before it was asked")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            data = json.loads(line)
            key = PlanKey(*data.pop("key"))
            plan = data.pop("plan", None)
            for note in data.pop("notes", ()):
                if note not in self._noted:
                    self._noted.add(note)
                    LOG.info("the planner says: %s", note)
            self.replies[key] = PlanReply(Plan.from_json(plan) if plan else None, **data)
            self._asked.pop(key, None)
            self._trigger.set()
        LOG.warning("the planner process ended with %s", await process.wait())
        self._asked.clear()
        self._trigger.set()
