"""What a job does while objects of it are refused, and once its run goes on after a lost Lease."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.controller import job_controller
from tests.unit.heddle_operator.controller.stage import BUDGET, JOB, NS, runner


@pytest.fixture
def run(tmp_path, monkeypatch):
    return runner(tmp_path, monkeypatch)


def condition(server, kind):
    rows = server.objects[JOB].get("status", {}).get("conditions", ())
    return next((row for row in rows if row["type"] == kind), {})


def test_a_secret_that_the_cluster_refuses_is_said_until_it_is_taken(run, monkeypatch):
    monkeypatch.setattr(job_controller, "RETRY_S", 0.01)
    path = f"{NS}/secrets/tiny-token"

    async def test(stage, port):
        stage.server.refuses["POST secrets"] = (403, "exceeded quota: few")
        await stage.server.remove(path)
        await stage.phase("Invalid")
        await stage.server.until(lambda s: condition(s, "Accepted")["reason"] == "ObjectRefused")
        words = "the cluster refuses the job's Secret: exceeded quota: few"
        assert stage.server.objects[JOB]["status"]["message"] == words
        await stage.server.until(lambda s: "ObjectRefused" in stage.reasons())
        stage.server.refuses.clear()
        await stage.phase("Pending")

    run(test, minGPUs=3, before={path: {"data": {"token": "b2xk"}}})


def test_a_budget_that_the_cluster_refuses_keeps_no_status_from_the_job(run, monkeypatch):
    monkeypatch.setattr(job_controller, "RETRY_S", 0.01)

    async def test(stage, port):
        stage.server.refuses["POST poddisruptionbudgets"] = (422, "the policy says no")
        await stage.start_pod(port)
        await stage.phase("Running")
        await stage.server.until(lambda s: condition(s, "Degraded")["reason"] == "ObjectRefused")
        assert "the policy says no" in condition(stage.server, "Degraded")["message"]
        await stage.server.until(lambda s: "ObjectRefused" in stage.reasons())
        stage.server.refuses.clear()
        await stage.server.until(lambda s: condition(s, "Degraded")["status"] == "False")
        assert BUDGET in stage.server.objects

    run(test)


def test_neither_an_event_nor_a_metric_tells_of_a_record_that_is_not_written(run):
    record = "configmaps/tiny-epoch-1"
    adopted = {"namespace": "ns", "job": "tiny", "reason": "start"}

    async def test(stage, port):
        def refuses(request, times):
            return lambda server: server.requests.count(request) >= times

        def counted():
            name = "heddle_decisions_total"
            return stage.metrics.jobs.get_sample_value(name, adopted)

        change = stage.pod.change

        async def changed(**rank):
            if rank["phase"] == "training":  # the record is sealed, and is to be closed as live
                stage.server.refuses[f"PUT {record}"] = (500, "etcd is gone")
            await change(**rank)

        stage.pod.change = changed
        stage.server.refuses["POST configmaps"] = (500, "etcd is gone")
        await stage.server.until(refuses(("POST", f"{NS}/configmaps"), 2))
        assert ("PlanSelected" in stage.reasons(), counted()) == (False, None)
        stage.server.refuses.clear()
        await stage.start_pod(port)
        await stage.server.until(refuses(("PUT", f"{NS}/{record}"), 3))
        assert (stage.reasons(), counted()) == ({"PlanSelected"}, 1)
        stage.server.refuses.clear()
        await stage.server.until(lambda _: "ReconfigurationSucceeded" in stage.reasons())

    run(test)


@pytest.mark.slow
def test_what_was_heard_outlives_a_lease_that_was_lost(run):
    """The same run goes on: it neither asks for a plan again nor forgets what agents said."""

    async def test(stage, port):
        await stage.start_pod(port)
        await stage.phase("Running")
        work = stage.run._work
        stage.run.rest()
        stage.task.cancel()
        await asyncio.gather(stage.task, return_exceptions=True)
        before = len(stage.server.requests)
        await stage.pod.change(phase="done", step=10)
        await asyncio.sleep(0)
        assert len(stage.server.requests) == before
        assert not stage.pod.is_ended.is_set()
        stage.task = asyncio.create_task(stage.run.run())
        await asyncio.wait_for(stage.pod.is_ended.wait(), 10)
        await stage.phase("Complete")
        assert stage.run._work is work
        assert list(stage.server.of("configmaps")) == ["tiny-epoch-1"]

    run(test)


@pytest.mark.slow
def test_a_run_that_goes_on_waits_for_the_operator_that_reads_its_records(run, monkeypatch):
    monkeypatch.setattr(job_controller, "RETRY_S", 0.01)
    path = f"{NS}/configmaps/tiny-epoch-9"
    labels = {"heddle.dev/job": "tiny", "heddle.dev/epoch": "9"}

    async def test(stage, port):
        await stage.start_pod(port)
        await stage.phase("Running")
        stage.run.rest()
        stage.task.cancel()
        await asyncio.gather(stage.task, return_exceptions=True)
        owner = {"uid": stage.server.objects[JOB]["metadata"]["uid"], "controller": True}
        newer = {"labels": labels, "ownerReferences": [owner]}
        await stage.server.put(path, {"metadata": newer, "data": {"format": "99"}})
        await stage.sync()
        stage.task = asyncio.create_task(stage.run.run())
        await stage.server.until(lambda s: condition(s, "Accepted")["reason"] == "NewerRecord")
        await stage.server.remove(path)
        await stage.sync()
        await stage.server.until(lambda s: condition(s, "Accepted")["reason"] == "Valid")

    run(test)


def test_a_job_waits_for_the_operator_that_reads_its_records(run, monkeypatch):
    monkeypatch.setattr(job_controller, "RETRY_S", 0.01)
    path = f"{NS}/configmaps/tiny-epoch-9"
    labels = {"heddle.dev/job": "tiny", "heddle.dev/epoch": "9"}

    async def test(stage, port):
        def reason(server):
            rows = server.objects[JOB].get("status", {}).get("conditions", [])
            return next((row["reason"] for row in rows if row["type"] == "Accepted"), None)

        owner = {"uid": stage.server.objects[JOB]["metadata"]["uid"], "controller": True}
        newer = {"labels": labels, "ownerReferences": [owner]}
        await stage.server.put(path, {"metadata": newer, "data": {"format": "99"}})
        await stage.follow_anew({}, is_restarted=True)
        await stage.server.until(lambda s: reason(s) == "NewerRecord")
        await stage.server.until(lambda s: "NewerRecord" in stage.reasons())
        assert "tiny-epoch-9 has format 99" in stage.server.objects[JOB]["status"]["message"]
        assert not stage.server.of("pods")
        await stage.server.remove(path)
        await stage.sync()
        await stage.server.until(lambda s: reason(s) == "Valid")

    run(test)
