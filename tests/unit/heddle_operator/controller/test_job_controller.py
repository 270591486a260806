"""One job from its first plan to its last pod, at an API server in memory, and pods that answer."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest

from heddle_operator.kube import owned_objects
from heddle_operator.report.conditions import ConditionType
from heddle_operator.rules.arbitration.demand import Demand
from tests.unit.heddle_operator.controller.stage import BUDGET, JOB, NS, runner


@pytest.fixture
def run(tmp_path, monkeypatch):
    return runner(tmp_path, monkeypatch)


@pytest.mark.slow
def test_a_job_is_planned_started_completed_and_its_pods_stay_ended(run):
    async def test(stage, port):
        await stage.start_pod(port)
        await stage.phase("Running")
        objects = stage.server.objects
        assert objects[BUDGET]["spec"]["minAvailable"] == 1
        assert objects[JOB]["status"]["epoch"] == 1
        assert list(stage.server.of("configmaps")) == ["tiny-epoch-1"]
        assert stage.metrics.jobs.get_sample_value(
            "heddle_job_epoch", {"namespace": "ns", "job": "tiny"}
        )
        for timed in ("decision", "planning"):
            name = f"heddle_{timed}_seconds_count"
            assert stage.metrics.registry.get_sample_value(name) >= 1
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
def test_a_secret_that_somebody_deleted_comes_back(run, monkeypatch):
    monkeypatch.setattr(owned_objects, "KNOWN_S", 0.0)

    async def test(stage, port):
        await stage.phase("Pending")
        await stage.server.remove(f"{NS}/secrets/tiny-token")
        stage.run.trigger.set()
        await stage.server.until(lambda s: "tiny-token" in s.of("secrets"))

    run(test, minGPUs=3)


@pytest.mark.slow
def test_a_job_that_ended_at_its_deadline_is_deleted_after_its_time_to_live(run):
    async def test(stage, port):
        await stage.phase("Failed")
        conditions = stage.server.objects[JOB]["status"]["conditions"]
        assert {"Failed": "DeadlineExceeded"}.items() <= {
            c["type"]: c["reason"] for c in conditions
        }.items()
        await stage.server.until(lambda s: JOB not in s.objects)
        await asyncio.wait_for(stage.task, 10)

    run(test, limits={"deadlineSeconds": 1, "ttlSecondsAfterFinished": 1}, minGPUs=3)


def test_a_secret_of_somebody_else_keeps_the_job_from_starting_and_is_said(run):
    path = f"{NS}/secrets/tiny-token"

    async def test(stage, port):
        await stage.phase("Invalid")
        _, accepted, *_ = stage.server.objects[JOB]["status"]["conditions"]
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


def test_a_budget_that_cannot_be_written_is_not_tried_at_each_look(run):
    async def test(stage, port):
        stage.server.refuses["GET poddisruptionbudgets/tiny"] = (500, "a webhook is silent")
        await stage.start_pod(port)
        await stage.phase("Running")
        stage.server.requests.clear()
        for _ in range(20):
            stage.run.trigger.set()
            await asyncio.sleep(0.05)
        assert stage.server.requests.count(("GET", BUDGET)) <= 1

    run(test)


def test_a_template_that_opens_the_node_is_refused_in_a_condition(run):
    volume = {"name": "host", "hostPath": {"path": "/"}}

    async def test(stage, port):
        await stage.phase("Invalid")
        *_, accepted = stage.server.objects[JOB]["status"]["conditions"]
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


def test_no_event_is_on_its_way_once_a_job_is_not_followed_any_more(run):
    async def test(stage, port):
        post, arrived = stage.server._post, asyncio.Event()

        async def held_up(request, path):
            if path.endswith("/events"):
                arrived.set()
                await asyncio.sleep(3600)
            return await post(request, path)

        stage.server._post = held_up
        await arrived.wait()
        stage.task.cancel()
        await asyncio.gather(stage.task, return_exceptions=True)
        assert "event" not in {task.get_name() for task in asyncio.all_tasks()}

    run(test, minGPUs=3)


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


HOST = {"name": "host", "hostPath": {"path": "/"}}


def accepted(server):
    rows = server.objects[JOB].get("status", {}).get("conditions", ())
    return next((row for row in rows if row["type"] == "Accepted"), {})


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        {"worker": {"template": {"spec": {"volumes": [HOST]}}}},
        {"worker": {"template": {"spec": {"containers": "x"}}}},
        {"planner": {"budgetSeconds": 1e6}},
        {"elastic": {"joinDebounceSeconds": "soon"}},
    ],
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_job_that_trains_is_followed_to_its_end_though_its_spec_is_refused(
    run, wrong, is_restarted
):
    async def test(stage, port):
        await stage.start_pod(port)
        await stage.phase("Running")
        await stage.follow_anew(wrong, is_restarted)
        await stage.server.until(lambda s: accepted(s)["status"] == "False")
        assert stage.server.objects[JOB]["status"]["phase"] == "Running"
        assert accepted(stage.server)["reason"] == "InvalidSpec"
        told = {row["type"] for row in stage.server.objects[JOB]["status"]["conditions"]}
        assert told == set(get_args(ConditionType))
        await stage.server.until(lambda s: "InvalidSpec" in stage.reasons())
        await stage.pod.change(phase="done", step=10)
        await asyncio.wait_for(stage.pod.is_ended.wait(), 10)
        await stage.end_pod("Succeeded")
        await stage.phase("Complete")
        await asyncio.wait_for(stage.task, 10)
        assert BUDGET not in stage.server.objects

    run(test)


@pytest.mark.slow
def test_what_trains_by_a_training_that_nobody_knows_is_left_alone_and_that_is_said(run):
    async def test(stage, port):
        await stage.start_pod(port)
        await stage.phase("Running")
        await stage.follow_anew({"steps": "many"}, is_restarted=True)
        await asyncio.wait_for(stage.task, 10)
        status = stage.server.objects[JOB]["status"]
        assert (status["phase"], accepted(stage.server)["status"]) == ("Running", "False")
        assert status["message"].endswith(
            "its pods train on without the operator until that is corrected"
        )
        assert BUDGET in stage.server.objects
        assert not stage.pod.is_ended.is_set()

    run(test)


@pytest.mark.slow
def test_a_job_that_ended_stays_what_it_was_whatever_is_written_into_its_spec(run):
    async def test(stage, port):
        await stage.phase("Failed")
        await asyncio.wait_for(stage.task, 10)
        before, arbiter = stage.server.objects[JOB]["status"], stage.context.arbiter
        assert not arbiter.jobs()
        uid = stage.server.objects[JOB]["metadata"]["uid"]
        nodes = (("a", 2),)  # asked for before this operator lost its Lease
        arbiter.allow(
            Demand(job=uid, priority=0, since="", least=1, most=2, weight=1.0, nodes=nodes)
        )
        await stage.follow_anew({"steps": "many"}, is_restarted=True)
        await asyncio.wait_for(stage.task, 10)
        assert stage.server.objects[JOB]["status"] == before
        assert not arbiter.jobs()

    run(test, limits={"deadlineSeconds": 1}, minGPUs=3)


@pytest.mark.slow
def test_a_job_that_failed_before_its_first_epoch_is_not_brought_back_by_a_longer_limit(run):
    async def test(stage, port):
        await stage.phase("Failed")
        await asyncio.wait_for(stage.task, 10)
        before = stage.server.objects[JOB]["status"]
        await stage.follow_anew({"deadlineSeconds": 1000}, is_restarted=True)
        await asyncio.wait_for(stage.task, 10)
        assert stage.server.objects[JOB]["status"] == before

    run(test, limits={"deadlineSeconds": 1}, minGPUs=3)


def test_a_job_that_is_refused_asks_for_no_gpus_of_the_others(run):
    async def test(stage, port):
        await stage.phase("Pending")
        uid = stage.server.objects[JOB]["metadata"]["uid"]
        assert uid in stage.context.arbiter.jobs()
        await stage.follow_anew({"steps": "many"}, is_restarted=False)
        await stage.phase("Invalid")
        assert uid not in stage.context.arbiter.jobs()
        of_phase = {"namespace": "ns", "job": "tiny", "phase": "Invalid"}
        assert stage.metrics.jobs.get_sample_value("heddle_job_phase", of_phase) == 1
        rows = stage.server.objects[JOB]["status"]["conditions"]
        assert {"Stalled": "True"}.items() <= {row["type"]: row["status"] for row in rows}.items()

    run(test, minGPUs=3)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [10, "many"])
def test_a_time_to_live_goes_on_after_a_restart_though_no_epoch_is_on_record(run, steps):
    async def test(stage, port):
        await stage.phase("Failed")
        held = stage.server.objects[JOB]
        long_ago = [
            {**row, "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for row in held["status"]["conditions"]
        ]
        status = {**held["status"], "conditions": long_ago}
        metadata = {**held["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"}
        await stage.server.put(JOB, {**held, "metadata": metadata, "status": status})
        await stage.follow_anew({"steps": steps}, is_restarted=True)
        await stage.server.until(lambda s: JOB not in s.objects)

    run(test, limits={"deadlineSeconds": 1, "ttlSecondsAfterFinished": 3600}, minGPUs=3)
