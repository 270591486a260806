"""Agents of all worker pods in one process: each has an address of its own, ranks train in words.

A rank is prepared as soon as it is told to be, switches as soon as it is told to, and steps go on
by the clock.  What a report holds is `FakeAgent`'s.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from heddle_operator.apis.labels import AGENT_PORT
from tests.fakes.agent import FakeAgent
from worker.contract import Directive, RankExit, RankReport

NETWORK = "10.99.0.0/16"  # of the machine that this runs in
STEP_S = 0.5
DIRECTIVE_BYTES = 64 << 20


class PodAgent:
    """The agent of one pod."""

    def __init__(self, job: str, pod: str, node: str, address: str) -> None:
        self.job = job
        self._agent = FakeAgent(
            pod=pod, node=node, gpus=0, pid=1, is_ready=True, store=f"{address}:9999"
        )
        self._began_s = time.monotonic()
        self._changed = asyncio.Event()

    async def report(self, after: int, wait_s: float) -> str:
        """The report, once it is newer than `after` or the time is over."""
        if self._agent.version <= after:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
        passed_s = time.monotonic() - self._began_s
        for slot, rank in self._agent.ranks.items():
            if rank.phase == "training":
                at = {"step": int(passed_s / STEP_S), "progress": int(100 * passed_s)}
                self._agent.ranks[slot] = rank.model_copy(update=at)
        return self._agent.report(self.job).model_dump_json()

    def hear(self, directive: Directive) -> None:
        """Do what a directive says."""
        agent, epoch = self._agent, directive.epoch
        agent.directive = directive
        if directive.phase == "abort":
            for slot, rank in list(agent.ranks.items()):
                if rank.epoch is None:
                    self._leave(slot)
                else:
                    agent.change(slot, pending_epoch=None)
        for member in directive.members:
            slot = member.slot
            if member.pod != agent.pod:
                continue
            if directive.phase == "prepare":
                if slot not in agent.ranks:
                    agent.ranks[slot] = _started(slot)
                agent.change(slot, pending_epoch=epoch)
            elif directive.phase == "switch" and member.rank is None:
                self._leave(slot)
            elif directive.phase == "switch" and slot in agent.ranks:
                trains = {"phase": "training", "epoch": epoch, "rank": member.rank}
                agent.change(slot, **trains, pending_epoch=None, also_epoch=None)
        self._tell()

    def halt(self) -> None:
        """A peer is lost: all ranks stand still at the same step."""
        for slot, rank in self._agent.ranks.items():
            if rank.phase == "training":
                self._agent.change(slot, phase="halted", step=0)
        self._tell()

    def _leave(self, slot: int) -> None:
        rank = self._agent.ranks.pop(slot, None)
        if rank is not None:
            gone = RankExit(slot=slot, pid=rank.pid, code=0, at_s=0.0)
            self._agent.exits = [*self._agent.exits, gone][-16:]

    def _tell(self) -> None:
        self._agent.version += 1
        self._changed.set()
        self._changed = asyncio.Event()


class AgentServer:
    """Answers for all agents, by the address that was asked."""

    def __init__(self) -> None:
        self.agents: dict[str, PodAgent] = {}
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen on the agents' port of all addresses of `NETWORK`."""
        route = ("ip", "route", "add", "local", NETWORK, "dev", "lo")
        await (await asyncio.create_subprocess_exec(*route)).wait()
        app = web.Application(client_max_size=DIRECTIVE_BYTES)
        routes = [web.get("/v1/report", self._report), web.put("/v1/directive", self._directive)]
        told = [web.put(f"/v1/{word}", self._told) for word in ("halt", "end")]
        app.add_routes([*routes, *told])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "0.0.0.0", AGENT_PORT, backlog=2000).start()

    async def close(self) -> None:
        """Answer no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    def _of(self, request: web.Request) -> PodAgent:
        found = self.agents.get(request.host.partition(":")[0])
        if found is None:
            raise web.HTTPServiceUnavailable
        return found

    async def _report(self, request: web.Request) -> web.Response:
        after, wait_s = int(request.query["after"]), float(request.query["wait_s"])
        text = await self._of(request).report(after, wait_s)
        return web.Response(text=text, content_type="application/json")

    async def _directive(self, request: web.Request) -> web.Response:
        agent = self._of(request)
        agent.hear(Directive.model_validate_json(await request.read()))
        return web.json_response({"accepted": True})

    async def _told(self, request: web.Request) -> web.Response:
        agent = self._of(request)
        if request.path.endswith("/halt"):
            agent.halt()
        return web.json_response({"accepted": True})


def _started(slot: int) -> RankReport:
    return RankReport(slot=slot, pid=100 + slot, started_s=0.0, phase="prepared")
