"""Jobs come, change and go; what one of them does wrong is no matter of the others."""

from __future__ import annotations

import asyncio
import json
import logging
import time

import pytest

from heddle_operator.controller import controller as controller_module
from heddle_operator.controller.controller import Controller
from heddle_operator.controller.job_controller import JobController
from heddle_operator.controller.job_work import ControllerContext
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import connect
from heddle_operator.resources.pods import WorkerDefaults
from heddle_operator.state.settings import Settings
from heddle_operator.telemetry.metrics import OperatorMetrics
from tests.builders import heddle_job
from tests.fakes.api_server import an_api_server
from worker.log_lines import JsonLines

JOBS = "/apis/heddle.dev/v1alpha1/namespaces/ns/heddlejobs"


def a_body(name="tiny"):
    """A job that is refused, so that its task ends by itself."""
    return {
        "apiVersion": "heddle.dev/v1alpha1",
        "kind": "HeddleJob",
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"},
        "spec": {"model": {"name": "unknown"}},
    }


def run(tmp_path, test):
    async def main():
        async with (
            an_api_server() as server,
            await connect(server.kubeconfig(tmp_path)) as api,
        ):
            cache, defaults = ObjectCache(), WorkerDefaults(image="heddle:1", template={})
            context = ControllerContext(
                api=api,
                cache=cache,
                defaults=defaults,
                settings=Settings(),
                metrics=OperatorMetrics(),
            )
            controller = Controller(context)
            controller.lead()
            try:
                await asyncio.wait_for(test(server, controller, cache), 20)
            finally:
                await controller.close()

    asyncio.run(main())


async def apply(server, controller, body):
    path = f"{JOBS}/{body['metadata']['name']}"
    controller.put(await server.put(path, body))
    return path


def message(server, path):
    return server.objects[path].get("status", {}).get("message", "")


def test_no_job_is_followed_before_the_cache_is_whole(tmp_path):
    async def test(server, controller, cache):
        path = await apply(server, controller, a_body())
        await asyncio.sleep(0)
        assert not message(server, path)
        controller.start()
        await server.until(lambda s: message(s, path))

    run(tmp_path, test)


def test_a_job_that_is_refused_says_so_once_and_anew_after_a_change(tmp_path):
    async def test(server, controller, cache):
        controller.start()
        path = await apply(server, controller, a_body())
        await server.until(lambda s: len(s.of("events")) == 1 and message(s, path))
        body = server.objects[path]
        assert body["status"]["phase"] == "Invalid"
        assert body["status"]["observedGeneration"] == 1
        controller.put(body)
        controller.put(await server.put(path, {**body, "spec": {"model": {"name": "x"}}}))
        await server.until(lambda s: len(s.of("events")) == 2)
        assert server.objects[path]["status"]["observedGeneration"] == 2
        assert {event["reason"] for event in server.of("events").values()} == {"InvalidSpec"}

    run(tmp_path, test)


def test_without_the_lease_no_job_is_followed_and_afterwards_they_go_on(tmp_path, monkeypatch):
    """What a run has heard stays: it is the same run that goes on."""
    runs, is_running = [], asyncio.Event()

    async def follow(self):
        runs.append(self)
        is_running.set()
        await asyncio.sleep(3600)

    monkeypatch.setattr(JobController, "run", follow)

    async def test(server, controller, cache):
        controller.start()
        controller.put(a_body())
        await is_running.wait()
        await controller.rest()
        await controller.rest()
        (run, task) = controller._runs["uid-tiny"]
        assert task is None
        controller.put(a_body("other"))
        controller.enqueue("uid-tiny")
        is_running.clear()
        controller.lead()
        await is_running.wait()
        await asyncio.sleep(0)
        assert runs[:2] == [run, run]
        assert [run.accepted for run in runs] == [None] * 3
        await controller.rest()
        controller.drop(a_body())
        assert list(controller._runs) == ["uid-other"]

    run(tmp_path, test)


async def add_pod(server, cache):
    """A pod of the job tiny."""
    owner = {"uid": "uid-tiny", "controller": True}
    metadata = {"labels": {"heddle.dev/job": "tiny"}, "ownerReferences": [owner]}
    path = "/api/v1/namespaces/ns/pods/tiny-a-0"
    cache.put("Pod", await server.put(path, {"metadata": metadata}))


def deleted(body):
    """A job that was deleted, and that a finalizer holds."""
    deleting = {**body["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    return {**body, "metadata": deleting}


def test_the_pods_of_a_job_that_was_deleted_go_at_once(tmp_path):
    async def test(server, controller, cache):
        controller.start()
        body = a_body()
        path = await apply(server, controller, body)
        await add_pod(server, cache)
        held = deleted(body)
        held["metadata"]["finalizers"] = ["example.com/audit"]
        controller.put(held)
        await server.until(lambda s: not s.of("pods") and "example.com/audit" in message(s, path))
        controller.drop(body)  # the deletion itself, told later

    run(tmp_path, test)


@pytest.mark.parametrize("event", ["start", "lead", "put"])
def test_the_pods_of_a_job_that_was_deleted_while_nobody_led_go_too(tmp_path, event):
    async def test(server, controller, cache):
        await controller.rest()
        events = {"start": controller.start, "lead": controller.lead}
        events["put"] = lambda: controller.put(deleted(a_body()))
        last = events.pop(event)
        await add_pod(server, cache)
        for each in events.values():
            each()
        await asyncio.sleep(0)
        assert server.of("pods")
        last()
        await server.until(lambda s: not s.of("pods"))
        controller.keep_only("ns", (), 7)
        assert not controller._held

    run(tmp_path, test)


def test_a_defect_in_one_job_leaves_the_others_alone(tmp_path, monkeypatch, caplog):
    follow = JobController.run

    async def fails(self):
        if self._body["metadata"]["name"] == "broken":
            raise RuntimeError("a defect of ours")
        await follow(self)

    monkeypatch.setattr(JobController, "run", fails)

    async def test(server, controller, cache):
        controller.start()
        await apply(server, controller, a_body("broken"))
        path = await apply(server, controller, a_body("sound"))
        await server.until(lambda s: message(s, path))

    caplog.handler.setFormatter(JsonLines())
    with caplog.at_level(logging.ERROR):
        run(tmp_path, test)
    said = json.loads(caplog.text.splitlines()[0])
    assert (said["namespace"], said["job"]) == ("ns", "broken")
    assert said["message"].startswith("it failed in the operator; it is followed anew")


def test_a_defect_is_said_in_the_status_until_the_job_is_followed_again(tmp_path, monkeypatch):
    follow, failures = JobController.run, []

    async def fails_once(self):
        failures.append(1)
        if len(failures) == 1:
            raise RuntimeError("a defect of ours")
        await follow(self)

    monkeypatch.setattr(JobController, "run", fails_once)
    monkeypatch.setattr(controller_module, "RESTART_S", (0.2, 0.2))

    def reason(server, path):
        rows = server.objects[path].get("status", {}).get("conditions", ())
        return next((row["reason"] for row in rows if row["type"] == "Ready"), "")

    async def test(server, controller, cache):
        controller.start()
        path = await apply(server, controller, a_body())
        await server.until(lambda s: reason(s, path) == "OperatorFailed")
        assert "RuntimeError: a defect of ours" in message(server, path)
        assert server.objects[path]["status"]["phase"] == "Pending"
        await server.until(lambda s: reason(s, path) == "InvalidSpec")

    run(tmp_path, test)


def test_a_defect_that_no_status_can_tell_leaves_the_job_followed(tmp_path, monkeypatch):
    failures, again = [], asyncio.Event()

    async def fails(self):
        failures.append(1)
        if len(failures) == 2:
            again.set()
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr(JobController, "run", fails)
    monkeypatch.setattr(controller_module, "RESTART_S", (0.01, 0.01))

    async def test(server, controller, cache):
        controller.start()
        await apply(server, controller, {**a_body(), "status": {"conditions": [7]}})
        await again.wait()

    run(tmp_path, test)


def test_the_same_defect_is_traced_once_and_looked_at_ever_more_seldom(
    tmp_path, monkeypatch, caplog
):
    failures, seen = [], asyncio.Event()

    async def fails(self):
        failures.append(1)
        if len(failures) == 5:
            seen.set()
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr(JobController, "run", fails)
    monkeypatch.setattr(controller_module, "RESTART_S", (0.001, 0.004))

    async def test(server, controller, cache):
        controller.start()
        await apply(server, controller, a_body())
        await seen.wait()

    with caplog.at_level(logging.ERROR):
        run(tmp_path, test)
    assert caplog.text.count("Traceback") == 1
    pauses = [record.args[0] for record in caplog.records][:4]
    assert pauses == [0.001, 0.002, 0.004, 0.004]


def test_a_job_whose_deletion_nobody_heard_is_dropped_by_the_next_list(tmp_path):
    async def test(server, controller, cache):
        controller.start()
        gone, young = a_body("gone"), a_body("young")
        for body, version in ((gone, "5"), (young, "9")):
            body["metadata"]["resourceVersion"] = version
            controller.put(body)
        pod = await server.put(
            "/api/v1/namespaces/ns/pods/gone-a-0",
            {
                "metadata": {
                    "labels": {"heddle.dev/job": "gone"},
                    "ownerReferences": [{"uid": "uid-gone", "controller": True}],
                }
            },
        )
        cache.put("Pod", pod)
        controller.keep_only("other", (), 7)
        assert sorted(controller._runs) == ["uid-gone", "uid-young"]
        controller.keep_only("ns", (), 7)  # a list that is older than the younger job
        await server.until(lambda s: not s.of("pods"))
        controller.put(gone)  # told late
        assert list(controller._runs) == ["uid-young"]

    run(tmp_path, test)


def test_what_changes_in_a_namespace_wakes_its_jobs_and_no_others(tmp_path, monkeypatch):
    async def sleep(run):
        await asyncio.sleep(3600)

    monkeypatch.setattr(JobController, "run", sleep)

    async def test(server, controller, cache):
        here, there = a_body(), a_body("other")
        there["metadata"]["namespace"] = "elsewhere"
        for body in (here, there):
            controller.put(body)
        triggers = [run.trigger for run, _ in controller._runs.values()]
        controller.enqueue_namespace("ns")
        assert [await trigger.wait(0.0) for trigger in triggers] == [True, False]

    run(tmp_path, test)


def test_that_kopf_tells_nothing_of_a_job_is_a_problem_once_it_should_have(tmp_path):
    async def test(server, controller, cache):
        body = a_body()
        body["metadata"]["generation"] = 2
        controller.seen(body)
        now = time.monotonic()
        assert controller.problem(now + 3600) == "", "Kopf does not watch on a standby"
        controller.start()
        assert controller.problem(now + 20) == ""
        assert controller.problem(now + 60).startswith("the watch of HeddleJobs has missed a")
        older = {**body, "metadata": {**body["metadata"], "generation": 1}}
        controller.put(older)
        assert controller.problem(now + 60)
        controller.put(body)
        assert controller.problem(now + 60) == ""
        controller.seen(body)
        assert controller.problem(now + 60) == ""
        controller.drop(body)
        controller.seen(body)  # told late
        assert controller.problem(now + 3600) == ""

    run(tmp_path, test)


def test_a_job_that_is_gone_before_kopf_told_of_it_is_no_problem(tmp_path):
    async def test(server, controller, cache):
        controller.start()
        controller.seen(a_body())
        controller.drop(a_body())
        assert controller.problem(time.monotonic() + 3600) == ""

    run(tmp_path, test)


def test_a_namespace_that_ends_ends_its_job_and_nothing_more_is_written(tmp_path):
    """Kubernetes deletes pods first and the job last; a pod of the job has a notice by then."""

    async def test(server, controller, cache):
        controller.start()
        body = a_body()
        body["spec"] = heddle_job("tiny")["spec"]
        path = await apply(server, controller, body)
        await server.until(lambda s: s.objects[path].get("status", {}).get("phase") == "Pending")
        pod = await server.put(
            "/api/v1/namespaces/ns/pods/tiny-a-0",
            {
                "metadata": {
                    "labels": {"heddle.dev/job": "tiny"},
                    "ownerReferences": [{"uid": "uid-tiny", "controller": True}],
                    "deletionTimestamp": "2026-01-01T00:00:00Z",
                },
                "spec": {"nodeName": "a"},
            },
        )
        cache.put("Pod", pod)
        await server.put("/api/v1/namespaces/ns", {"metadata": {"deletionTimestamp": "now"}})
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        gpus = {"nvidia.com/gpu": "2"}
        cache.put_node(
            {
                "metadata": {"name": "b", "labels": {"heddle.dev/gpu-type": "demo-fast"}},
                "spec": {"unschedulable": True},
                "status": {"capacity": gpus, "allocatable": gpus, "conditions": [ready]},
            }
        )
        controller.enqueue("")  # it would tell why it cannot use that node
        await server.until(lambda s: s.requests.count(("DELETE", pod_path)) > 0)
        assert not controller._runs
        written = [path for method, path in server.requests if method in ("PUT", "POST")]
        controller.put(body)  # the job itself, which goes last
        controller.enqueue("")
        assert not controller._runs
        assert [p for m, p in server.requests if m in ("PUT", "POST")] == written

    pod_path = "/api/v1/namespaces/ns/pods/tiny-a-0"
    run(tmp_path, test)
