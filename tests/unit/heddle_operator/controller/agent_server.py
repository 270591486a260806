"""An agent as far as HTTP goes: it reports, and remembers what it was told."""

from __future__ import annotations

import asyncio

from aiohttp import web

from heddle_operator.controller.agents import Agents
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.snapshot import ObservedPod
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan
from worker.contract import Directive, Halt, Refusal, Report

TOKEN = "secret"


class Server:
    """One agent: a version that grows, and the directives that it got."""

    def __init__(self):
        self.version = 1
        self.changed = asyncio.Event()
        self.directives = []
        self.ends = 0
        self.halts = []
        self.waits_s = []
        self.ranks = ()
        self.reads_columns = False
        self.encodings = []  # of the directives
        self.refuses = None  # a directive: status and sentence
        self.answers = None  # instead, too
        self.location = ""  # to which an answer redirects
        self.says = None  # instead of a report: status and text
        app = web.Application()
        app.add_routes(
            [
                web.get("/v1/report", self.report),
                web.put("/v1/directive", self.put),
            ]
        )
        app.add_routes([web.put("/v1/end", self.end), web.put("/v1/halt", self.halt)])
        self.runner = web.AppRunner(app, shutdown_timeout=0.01)

    async def start(self):
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        return f"127.0.0.1:{self.runner.addresses[0][1]}"

    def change(self):
        self.version += 1
        self.changed.set()

    async def report(self, request):
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        self.waits_s.append(float(request.query["wait_s"]))
        if self.answers:
            return await self.answers(request)
        if self.says:
            headers = {"Location": self.location} if self.location else {}
            return web.Response(status=self.says[0], text=self.says[1], headers=headers)
        if int(request.query["after"]) >= self.version:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 5)
        report = Report(
            job="tiny", pod="p", node="n", version=self.version, agent_pid=1, agent_started_s=0.0,
            ready=True, ranks=self.ranks, reads_columns=self.reads_columns,
        )  # fmt: skip
        return web.Response(text=report.model_dump_json())

    async def halt(self, request):
        self.halts.append(Halt.model_validate_json(await request.read()))
        self.change()
        return web.json_response({"accepted": True})

    async def end(self, request):
        self.ends += 1
        self.change()
        return web.json_response({"accepted": True})

    async def put(self, request):
        self.encodings.append(request.headers["Content-Encoding"])
        self.directives.append(Directive.model_validate_json(await request.read()))
        if self.refuses:
            status, sentence = self.refuses
            return web.Response(status=status, text=Refusal(error=sentence).model_dump_json())
        self.change()
        return web.Response(text="{}")


def pod(address, name="p"):
    return ObservedPod(name=name, node="n", ordinal=0, gpus=1, phase="running", address=address)


def directive(epoch):
    plan = fake_plan(Composition((Node(name="n", gpu_type="demo-fast", gpus=1),)), a_job().workload)
    return Directive(
        job="tiny", epoch=epoch, phase="prepare", reason="start", plan=plan.to_json(),
        plan_digest=plan.digest, members=(), store="s:1", training=a_job().training,
    )  # fmt: skip


def run(test):
    async def main():
        trigger = Trigger()
        agents = Agents(TOKEN, trigger, 5.0)
        server = Server()
        address = await server.start()
        try:
            await asyncio.wait_for(test(agents, trigger, server, address), 20)
        finally:
            await agents.close()
            await server.runner.cleanup()

    asyncio.run(main())


async def until(trigger, is_so):
    while not is_so():
        assert await trigger.wait(5.0), "nothing changed for 5 s"
