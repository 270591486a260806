"""One job from its first plan to its last pod, at an API server in memory, and pods that answer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from aiohttp import web

from heddle_operator.controller.job_controller import ControllerContext, JobController, stub_of
from heddle_operator.inventory import pods as pod_view
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import connect
from heddle_operator.resources.pods import WorkerDefaults
from heddle_operator.state.settings import Settings
from heddle_operator.telemetry.metrics import OperatorMetrics
from planner.model.catalogue import MODELS
from tests.fakes.agent import FakeAgent
from tests.fakes.api_server import an_api_server
from tests.fakes.lists import relist
from worker.checkpoint.hugging_face.config import config_of
from worker.contract import Directive, RankReport

NS = "/api/v1/namespaces/ns"
JOB = "/apis/heddle.dev/v1alpha1/namespaces/ns/heddlejobs/tiny"
BUDGET = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/tiny"


class Pod:
    """A pod that runs: an agent that does at once what it is told."""

    def __init__(self):
        self.agent = FakeAgent("tiny-a-0", "a", 2, 7, is_ready=True, store="127.0.0.1:1")
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
        settings = replace(Settings(), plan_evaluations=20)
        defaults = WorkerDefaults("heddle:1", {})
        context = ControllerContext(
            *(self.api, self.cache, defaults, settings, self.metrics),
            sees_all_pods=self.sees_all_pods,
        )
        self.run = JobController(body, context)
        await self.sync()
        self.task = asyncio.create_task(self.run.run())

    async def sync(self):
        await relist(self.api, self.cache)

    async def start_pod(self, port):
        path = f"{NS}/pods/tiny-a-0"
        body = await self.server.until(lambda s: s.objects.get(path))
        pod_view.AGENT_PORT = port
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


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(pod_view, "AGENT_PORT", pod_view.AGENT_PORT)

    def run(test, model=None, worker=None, before=None, limits=None, sees_all_pods=True, **elastic):
        async def main():
            async with (
                an_api_server() as server,
                await connect(server.kubeconfig(tmp_path)) as api,
            ):
                stage = Stage(server, api, sees_all_pods)
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


@pytest.mark.slow
def test_a_job_is_planned_started_completed_and_its_pods_stay_ended(run):
    async def test(stage, port):
        await stage.start_pod(port)
        await stage.phase("Running")
        objects = stage.server.objects
        assert objects[BUDGET]["spec"]["minAvailable"] == 1
        assert objects[JOB]["status"]["epoch"] == 1
        assert list(stage.server.of("configmaps")) == ["tiny-epoch-1"]
        assert stage.metrics.registry.get_sample_value(
            "heddle_job_epoch", {"namespace": "ns", "job": "tiny"}
        )
        await stage.pod.change(phase="done", step=10)
        await asyncio.wait_for(stage.pod.is_ended.wait(), 10)
        await stage.phase("Complete")
        await stage.end_pod("Succeeded")
        await asyncio.wait_for(stage.task, 10)
        assert f"{NS}/pods/tiny-a-0" in objects
        assert BUDGET not in objects
        assert objects[JOB]["status"]["grantedGPUs"] == 0
        assert ("DELETE", f"{NS}/pods/tiny-a-0") not in stage.server.requests
        await stage.server.until(lambda s: {"PlanSelected", "Complete"} <= stage.reasons())

    run(test)


@pytest.mark.slow
def test_a_drain_of_the_only_node_is_blocked_and_said(run):
    async def test(stage, port):
        await stage.start_pod(port)
        await stage.phase("Running")
        node = "/api/v1/nodes/a"
        cordoned = {**stage.server.objects[node], "spec": {"unschedulable": True}}
        await stage.server.put(node, cordoned)
        await stage.sync()
        await stage.server.until(lambda s: "DrainBlocked" in stage.reasons())

        def is_blocked(server):
            rows = server.objects[JOB]["status"]["conditions"]
            return next(r for r in rows if r["type"] == "DrainBlocked")["status"] == "True"

        await stage.server.until(is_blocked)
        labels = stage.server.objects[f"{NS}/pods/tiny-a-0"]["metadata"]["labels"]
        assert "heddle.dev/evictable" not in labels

    run(test)


@pytest.mark.slow
@pytest.mark.parametrize("is_gone", [False, True])
def test_agents_end_with_a_job_that_was_deleted_and_not_with_an_operator(run, is_gone):
    async def test(stage, port):
        await stage.start_pod(port)
        await stage.phase("Running")
        if is_gone:
            stage.run.gone()
        stage.task.cancel()
        await asyncio.gather(stage.task, return_exceptions=True)
        assert stage.pod.is_ended.is_set() == is_gone

    run(test)


def test_a_job_without_enough_gpus_waits_and_says_so(run):
    async def test(stage, port):
        await stage.phase("Pending")
        assert "minGPUs is 3" in stage.server.objects[JOB]["status"]["message"]
        await stage.server.until(lambda s: stage.reasons() == {"InsufficientGPUs"})
        assert stage.server.of("configmaps") == {}
        assert BUDGET not in stage.server.objects

    run(test, minGPUs=3)


@pytest.mark.slow
def test_a_job_that_ended_at_its_deadline_is_deleted_after_its_time_to_live(run):
    async def test(stage, port):
        await stage.phase("Failed")
        assert stage.server.objects[JOB]["status"]["message"].startswith("DeadlineExceeded: ")
        await stage.server.until(lambda s: JOB not in s.objects)
        await asyncio.wait_for(stage.task, 10)

    run(test, limits={"deadlineSeconds": 1, "ttlSecondsAfterFinished": 1}, minGPUs=3)


@pytest.mark.slow
def test_a_model_in_a_folder_waits_for_its_config_map_and_says_so(run):
    config = config_of(MODELS["tiny-llama"])

    async def test(stage, port):
        await stage.phase("Invalid")
        message = stage.server.objects[JOB]["status"]["message"]
        assert message.startswith("spec.model.configRef: ")
        held = {"metadata": {"name": "llama"}, "data": {"config.json": json.dumps(config)}}
        await stage.server.put(f"{NS}/configmaps/llama", held)
        await stage.phase("Pending")
        assert "minGPUs is 3" in stage.server.objects[JOB]["status"]["message"]

    run(test, model={"path": "/volume/llama", "configRef": "llama"}, minGPUs=3)


def test_a_secret_of_somebody_else_keeps_the_job_from_starting_and_is_said(run):
    path = f"{NS}/secrets/tiny-token"

    async def test(stage, port):
        await stage.phase("Invalid")
        (accepted,) = stage.server.objects[JOB]["status"]["conditions"]
        assert (accepted["status"], accepted["reason"]) == ("False", "NameTaken")
        assert "Secret tiny-token is there and not this job's" in accepted["message"]
        await stage.server.until(lambda s: stage.reasons() == {"NameTaken"})
        assert stage.server.objects[path]["data"] == {"token": "b2xk"}

    run(test, minGPUs=3, before={path: {"data": {"token": "b2xk"}}})


def test_a_budget_of_somebody_else_is_said_while_the_job_trains(run):
    async def test(stage, port):
        held = stage.server.objects[BUDGET]
        await stage.start_pod(port)
        await stage.phase("Running")
        await stage.server.until(lambda s: "NameTaken" in stage.reasons())

        def is_said(server):
            rows = server.objects[JOB]["status"]["conditions"]
            degraded = next(row for row in rows if row["type"] == "Degraded")
            return degraded["reason"] == "NameTaken" and "Budget tiny" in degraded["message"]

        await stage.server.until(is_said)
        assert stage.server.objects[BUDGET] == held

    run(test, before={BUDGET: {"spec": {"minAvailable": 7}}})


def test_a_template_that_opens_the_node_is_refused_in_a_condition(run):
    volume = {"name": "host", "hostPath": {"path": "/"}}

    async def test(stage, port):
        await stage.phase("Invalid")
        (accepted,) = stage.server.objects[JOB]["status"]["conditions"]
        assert "volumes[0].hostPath: a job may not set hostPath" in accepted["message"]
        assert stage.server.of("pods") == stage.server.of("secrets") == {}

    run(test, worker={"template": {"spec": {"volumes": [volume]}}})


@pytest.mark.parametrize("sees_all_pods", [False, True])
def test_a_job_is_told_where_gpus_of_others_are_not_seen(run, sees_all_pods):
    async def test(stage, port):
        await stage.phase("Pending")
        await stage.server.until(lambda _: "InsufficientGPUs" in stage.reasons())
        assert ("GPUsNotSeen" in stage.reasons()) is not sees_all_pods

    run(test, sees_all_pods=sees_all_pods, minGPUs=3)


def test_an_api_server_that_refuses_for_a_while_costs_only_time(run):
    async def test(stage, port):
        stage.server.refuses["PATCH status"] = (500, "etcd is gone")
        await stage.server.until(lambda s: s.requests.count(("PATCH", f"{JOB}/status")) >= 1)
        stage.server.refuses.clear()
        await stage.phase("Pending")

    run(test, minGPUs=3)


def test_even_of_a_job_that_cannot_be_read_the_identity_is_known():
    metadata = {"name": "x.y", "namespace": "ns", "uid": "u", "generation": 4}
    found = stub_of({"metadata": metadata})
    assert (found.name, found.metadata.namespace, found.metadata.uid) == ("x.y", "ns", "u")


@pytest.mark.parametrize(
    "spec",
    [
        "x",
        {"containers": "x"},
        {"containers": [7]},
        {"containers": [{"name": "worker", "args": 3}]},
        {"nodeSelector": ["a"]},
        {"tolerations": ["all"]},
        {"volumes": {"name": "out"}, "containers": [{}]},
        {"affinity": {"nodeAffinity": ["x"]}},
        {"terminationGracePeriodSeconds": None, "initContainers": 5},
    ],
)
def test_a_template_of_no_pod_is_a_condition(run, spec):
    async def test(stage, port):
        await stage.phase("Invalid")
        status = stage.server.objects[JOB]["status"]
        assert "spec.worker.template" in status["message"]
        assert status["conditions"][0]["reason"] == "InvalidSpec"
        await asyncio.wait_for(stage.task, 10)

    run(test, worker={"template": {"spec": spec}})
