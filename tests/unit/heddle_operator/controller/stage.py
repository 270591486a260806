"""A job at an API server in memory, and a pod of it that answers."""

from __future__ import annotations

import asyncio

from aiohttp import web

from heddle_operator.controller.job_controller import JobController
from heddle_operator.controller.job_work import ControllerContext
from heddle_operator.inventory import host_ports
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import connect
from heddle_operator.resources.pods import WorkerDefaults
from heddle_operator.state.settings import Settings
from heddle_operator.telemetry.metrics import OperatorMetrics
from tests.fakes.agent import FakeAgent
from tests.fakes.api_server import an_api_server
from tests.fakes.lists import relist
from worker.contract import Directive, RankReport

NS = "/api/v1/namespaces/ns"
JOB = "/apis/heddle.dev/v1alpha1/namespaces/ns/heddlejobs/tiny"
BUDGET = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/tiny"


class Pod:
    """A pod that runs: an agent that does at once what it is told."""

    def __init__(self):
        self.agent = FakeAgent(
            pod="tiny-a-0", node="a", gpus=2, pid=7, is_ready=True, store="127.0.0.1:1"
        )
        self.changed = asyncio.Condition()
        self.is_ended = asyncio.Event()
        app = web.Application()
        app.add_routes(
            [
                web.get("/v1/report", self.report),
                web.put("/v1/directive", self.directive),
                web.put("/v1/end", self.end),
            ]
        )
        self.runner = web.AppRunner(app, shutdown_timeout=0.01)

    async def start(self):
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        return self.runner.addresses[0][1]

    async def change(self, **rank):
        for member in self.agent.directive.members:
            slot, new = member.slot, {"slot": member.slot, "pid": 8 + member.slot}
            self.agent.ranks.setdefault(slot, RankReport(**new, started_s=0.0, phase="starting"))
            self.agent.change(slot, **rank, rank=member.rank)
        async with self.changed:
            self.changed.notify_all()

    async def report(self, request):
        after = int(request.query["after"])
        async with self.changed:
            await self.changed.wait_for(lambda: self.agent.version > after)
        return web.Response(text=self.agent.report("tiny").model_dump_json())

    async def directive(self, request):
        directive = Directive.model_validate_json(await request.read())
        self.agent.directive = directive
        if directive.phase == "prepare":
            await self.change(phase="prepared", pending_epoch=directive.epoch)
        if directive.phase == "switch":
            await self.change(phase="training", pending_epoch=None, epoch=directive.epoch, step=3)
        return web.Response(text="{}")

    async def end(self, request):
        self.is_ended.set()
        return web.Response(text="{}")


class Stage:
    """A node, its kubelet (this), a job, and the operator's run of it."""

    def __init__(self, server, api, sees_all_pods=True):
        self.server, self.api, self.pod = server, api, Pod()
        self.sees_all_pods = sees_all_pods
        self.metrics, self.cache = OperatorMetrics(), ObjectCache(lambda _: self.run.trigger.set())

    async def begin(self, model, worker=None, before=None, limits=None, **elastic):
        for path, held in (before or {}).items():
            await self.server.put(path, held)
        resources = {"nvidia.com/gpu": "2"}
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        await self.server.put(
            "/api/v1/nodes/a",
            {
                "metadata": {"labels": {"heddle.dev/gpu-type": "demo-fast"}},
                "status": {
                    "capacity": resources, "allocatable": resources, "conditions": [ready],
                },
            },
        )  # fmt: skip
        body = await self.server.put(
            JOB,
            {
                "apiVersion": "heddle.dev/v1alpha1",
                "kind": "HeddleJob",
                "spec": {
                    "model": model,
                    "data": {"builtin": "text"},
                    "training": {"globalBatch": 32, "sequenceLength": 128},
                    "steps": 10,
                    "elastic": {"joinDebounceSeconds": 0, **elastic},
                    **({"worker": worker} if worker else {}),
                    **(limits or {}),
                },
            },
        )
        settings = Settings(plan_evaluations=20)
        defaults = WorkerDefaults(image="heddle:1", template={})
        self.context = ControllerContext(
            api=self.api,
            cache=self.cache,
            defaults=defaults,
            settings=settings,
            metrics=self.metrics,
            sees_all_pods=self.sees_all_pods,
        )
        self.run = JobController(body, self.context)
        await self.sync()
        self.task = asyncio.create_task(self.run.run())

    async def follow_anew(self, spec, is_restarted):
        """The spec is changed, and the operator, or one that starts now, sees it."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        held = self.server.objects[JOB]
        body = await self.server.put(JOB, {**held, "spec": {**held["spec"], **spec}})
        before = None if is_restarted else self.run.accepted
        self.run = JobController(body, self.context, before)
        await self.sync()
        self.task = asyncio.create_task(self.run.run())

    async def sync(self):
        await relist(self.api, self.cache)

    async def start_pod(self, port):
        path = f"{NS}/pods/tiny-a-0"
        body = await self.server.until(lambda s: s.objects.get(path))
        host_ports.AGENT_PORT = port
        spec = {**body["spec"], "nodeName": "a"}
        status = {"phase": "Running", "podIP": "127.0.0.1"}
        await self.server.put(path, {**body, "spec": spec, "status": status})
        await self.sync()

    async def phase(self, phase):
        def is_there(server):
            return server.objects[JOB].get("status", {}).get("phase") == phase

        await self.server.until(is_there)

    async def end_pod(self, phase):
        path = f"{NS}/pods/tiny-a-0"
        await self.server.put(path, {**self.server.objects[path], "status": {"phase": phase}})
        await self.sync()

    def reasons(self):
        return {event["reason"] for event in self.server.of("events").values()}


def runner(tmp_path, monkeypatch):
    """Runs a test on a stage."""
    monkeypatch.setattr(host_ports, "AGENT_PORT", host_ports.AGENT_PORT)

    def run(
        test,
        model=None,
        worker=None,
        before=None,
        limits=None,
        sees_all_pods=True,
        refuses=None,
        **elastic,
    ):
        async def main():
            async with (
                an_api_server() as server,
                await connect(server.kubeconfig(tmp_path)) as api,
            ):
                stage = Stage(server, api, sees_all_pods)
                server.refuses |= refuses or {}
                port = await stage.pod.start()
                named = model or {"name": "tiny-llama"}
                await stage.begin(named, worker, before, limits, **elastic)
                try:
                    await asyncio.wait_for(test(stage, port), 60)
                finally:
                    stage.task.cancel()
                    await asyncio.gather(stage.task, return_exceptions=True)
                    await stage.pod.runner.cleanup()

        asyncio.run(main())

    return run
