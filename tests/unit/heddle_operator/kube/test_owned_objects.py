"""Token, budget, status and events of a job, at an API server in memory."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.apis.errors import EarlierJobRemains, NameTaken
from heddle_operator.apis.heddlejob import Metadata
from heddle_operator.kube import earlier_objects, owned_objects
from heddle_operator.kube.client import ApiRefused, connect
from heddle_operator.kube.owned_objects import JobObjects, is_live, mark_on
from heddle_operator.rules.drain import Drain
from heddle_operator.state.actions import RecordEvent
from tests.fakes.api_server import an_api_server
from tests.fakes.operator import a_job

JOB = a_job().model_copy(update={"metadata": Metadata(name="tiny", namespace="ns", uid="job")})
PATHS = "/api/v1/namespaces/ns"
BUDGET = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/tiny"
YIELDS = f"{BUDGET}-yield"
STATUS = "/apis/heddle.dev/v1alpha1/namespaces/ns/heddlejobs/tiny"


def run(tmp_path, test, job=JOB):
    async def main():
        async with (
            an_api_server() as server,
            await connect(server.kubeconfig(tmp_path)) as api,
        ):
            return await asyncio.wait_for(test(server, JobObjects(job, api)), 20)

    return asyncio.run(main())


def a_pod(name="p", phase="Running", evictable=False, deleting=False):
    metadata = {"name": name, "uid": f"uid-{name}"}
    if evictable:
        metadata["labels"] = {"heddle.dev/evictable": "true"}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "status": {"phase": phase}}


def test_the_token_is_made_once_and_read_back_ever_after(tmp_path):
    async def test(server, objects):
        first = await objects.token()
        assert len(first) >= 32
        assert await objects.token() == first
        (secret,) = server.of("secrets").values()
        assert secret["metadata"]["ownerReferences"][0]["uid"] == "job"
        assert first not in str(secret)

    run(tmp_path, test)


def test_a_token_whose_secret_somebody_deleted_comes_back_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(owned_objects, "KNOWN_S", 0.0)

    async def test(server, objects):
        await objects.keep_token()
        assert not server.of("secrets")
        token = await objects.token()
        await server.remove(f"{PATHS}/secrets/tiny-token")
        await objects.keep_token()
        assert await objects.token() == token
        await server.put(f"{PATHS}/secrets/tiny-token", {"metadata": {"ownerReferences": []}})
        await objects.keep_token()
        assert "data" not in server.objects[f"{PATHS}/secrets/tiny-token"]

    run(tmp_path, test)


EARLIER = [{"uid": "earlier", "controller": True, "kind": "HeddleJob", "name": "tiny"}]


@pytest.mark.parametrize(
    ("owners", "kind"),
    [([], NameTaken), (EARLIER, EarlierJobRemains)],
    ids=["of nobody", "of an earlier job"],
)
def test_a_secret_of_somebody_else_is_neither_used_nor_changed(tmp_path, owners, kind):
    async def test(server, objects):
        path = f"{PATHS}/secrets/tiny-token"
        foreign = {"metadata": {"ownerReferences": owners}, "data": {"token": "b2xk"}}
        held = await server.put(path, foreign)
        with pytest.raises(NameTaken, match="Secret tiny-token is ") as taken:
            await objects.token()
        assert taken.type is kind
        assert server.objects[path] == held
        assert {method for method, _ in server.requests} == {"GET"}
        await server.remove(path)
        assert await objects.token() != "old"

    run(tmp_path, test)


def test_a_secret_that_cannot_be_read_is_no_reason_to_make_another(tmp_path):
    async def test(server, objects):
        server.refuses["GET tiny-token"] = (403, "forbidden")
        with pytest.raises(ApiRefused, match="forbidden"):
            await objects.token()
        assert server.of("secrets") == {}

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("pod", "live", "mark"),
    [
        (a_pod(), True, None),
        (a_pod(phase="Pending"), True, None),
        (a_pod(evictable=True), True, "true"),
        (a_pod(deleting=True), False, None),
        (a_pod(phase="Succeeded"), False, None),
        (a_pod(phase="Failed"), False, None),
    ],
    ids=["runs", "starts", "let go", "terminates", "ended well", "failed"],
)
def test_the_budget_counts_pods_that_live_by_their_mark(pod, live, mark):
    assert (is_live(pod), mark_on(pod)) == (live, mark)


def test_the_budget_follows_the_pods_and_goes_with_the_job(tmp_path):
    async def test(server, objects):
        assert await objects.write_budget(0)
        assert BUDGET not in server.objects
        for least in (2, 1, 0):
            assert await objects.write_budget(least)
            assert server.objects[BUDGET]["spec"]["minAvailable"] == least
        assert await objects.write_budget(2, "one-at-a-time")
        assert server.objects[f"{BUDGET}-yield"]["spec"]["minAvailable"] == 2
        assert server.objects[BUDGET]["spec"]["minAvailable"] == 0
        await objects.delete_budgets()
        await objects.delete_budgets()
        assert server.of("poddisruptionbudgets") == {}

    run(tmp_path, test)


def test_a_budget_of_an_earlier_job_is_said_only_where_it_stays(tmp_path, monkeypatch):
    async def test(server, objects):
        await server.put(BUDGET, {"metadata": {"ownerReferences": EARLIER}})
        assert not await objects.write_budget(1)
        assert objects.taken == ""
        monkeypatch.setattr(earlier_objects, "TOLD_S", 0.0)
        assert not await objects.write_budget(1)
        assert objects.taken.startswith("PodDisruptionBudget tiny is of an earlier job")
        await server.remove(BUDGET)
        assert await objects.write_budget(1)
        assert objects.taken == ""

    run(tmp_path, test)


def test_a_budget_of_somebody_else_is_neither_changed_nor_deleted(tmp_path):
    async def test(server, objects):
        held = await server.put(BUDGET, {"spec": {"minAvailable": 7}})
        await objects.write_budget(1)
        assert objects.taken.startswith("PodDisruptionBudget tiny is there and not this job's")
        await objects.delete_budgets()
        assert server.objects[BUDGET] == held
        await server.remove(BUDGET)
        await objects.write_budget(1)
        assert objects.taken == ""
        assert server.objects[BUDGET]["spec"]["minAvailable"] == 1

    run(tmp_path, test)


def test_a_budget_that_stands_does_not_hide_that_another_is_of_somebody_else(tmp_path):
    async def test(server, objects):
        await server.put(BUDGET, {"spec": {"minAvailable": 7}})
        assert not await objects.write_budget(1)
        assert await objects.write_budget(1, "one-at-a-time")
        assert objects.taken.startswith("PodDisruptionBudget tiny is there")

    run(tmp_path, test)


def test_a_budget_that_was_replaced_meanwhile_is_not_written_over(tmp_path):
    async def test(server, objects):
        await objects.write_budget(1)
        other = {"metadata": {"ownerReferences": [], "uid": "another"}, "spec": {}}
        held = await server.put(BUDGET, other)
        await objects.write_budget(2)
        assert server.objects[BUDGET] == held
        assert objects.taken

    run(tmp_path, test)


def test_a_budget_that_is_right_is_not_written_again(tmp_path):
    async def test(server, objects):
        await objects.write_budget(1)
        asked = len(server.requests)
        await objects.write_budget(1)
        assert len(server.requests) == asked

    run(tmp_path, test)


def test_a_budget_that_somebody_deleted_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(owned_objects, "KNOWN_S", 0.0)

    async def test(server, objects):
        await objects.write_budget(1)
        await server.remove(BUDGET)
        await objects.write_budget(1)
        assert server.objects[BUDGET]["spec"]["minAvailable"] == 1

    run(tmp_path, test)


@pytest.mark.parametrize(("status", "is_final"), [(403, True), (422, True), (500, False)])
def test_a_budget_that_is_refused_for_good_is_said_until_it_is_taken(tmp_path, status, is_final):
    async def test(server, objects):
        pods = await pods_at(server, "a")
        server.refuses["POST poddisruptionbudgets"] = (status, "exceeded quota: few")
        with pytest.raises(ApiRefused):
            await objects.write_budgets(pods, Drain())
        words = "the cluster refuses the job's PodDisruptionBudget: exceeded quota: few"
        assert objects.refused == (words if is_final else "")
        server.refuses.clear()
        await objects.write_budgets(pods, Drain())
        assert objects.refused == ""

    run(tmp_path, test)


async def pods_at(server, *names):
    return [await server.put(f"{PATHS}/pods/{n}", {"status": {"phase": "Running"}}) for n in names]


def marks(server):
    found = {}
    for pod in server.of("pods").values():
        found[pod["metadata"]["name"]] = mark_on(pod)
    return found


def test_budgets_are_written_before_the_marks_of_the_pods_that_they_cover(tmp_path):
    async def test(server, objects):
        pods, drain = await pods_at(server, "a", "b", "c"), Drain(yielded=frozenset("ab"))
        await objects.write_budgets(pods, drain)
        least = {name: server.objects[name]["spec"]["minAvailable"] for name in (BUDGET, YIELDS)}
        assert least == {BUDGET: 3, YIELDS: 1}
        assert marks(server) == {"a": "one-at-a-time", "b": "one-at-a-time", "c": None}
        writes = [path for method, path in server.requests if method in ("POST", "PATCH")]
        assert [path.rsplit("/", 2)[-2] for path in writes[-2:]] == ["pods", "pods"]
        await objects.write_budgets(
            list(server.of("pods").values()), Drain(yielded=frozenset("ab"))
        )
        assert server.objects[BUDGET]["spec"]["minAvailable"] == 1
        await objects.write_budgets(list(server.of("pods").values()), Drain())
        least = {name: server.objects[name]["spec"]["minAvailable"] for name in (BUDGET, YIELDS)}
        assert least == {BUDGET: 3, YIELDS: 2}
        assert set(marks(server).values()) == {None}

    run(tmp_path, test)


def test_without_the_budget_that_yields_nothing_is_yielded(tmp_path):
    async def test(server, objects):
        pods = await pods_at(server, "a", "b")
        await server.put(YIELDS, {"spec": {"minAvailable": 7}})
        await objects.write_budgets(pods, Drain(yielded=frozenset("ab")))
        assert marks(server) == {"a": None, "b": None}
        assert objects.taken.startswith("PodDisruptionBudget tiny-yield is there")

    run(tmp_path, test)


def test_a_pod_is_let_go_and_taken_back(tmp_path):
    async def test(server, objects):
        path = f"{PATHS}/pods/p"
        pod = await server.put(path, {"metadata": {"labels": {"a": "b"}}})
        await objects.mark(pod, "true")
        assert server.objects[path]["metadata"]["labels"]["heddle.dev/evictable"] == "true"
        await objects.mark(pod, None)
        assert server.objects[path]["metadata"]["labels"] == {"a": "b"}
        gone = {"metadata": {**pod["metadata"], "uid": "of-an-earlier-pod"}}
        with pytest.raises(ApiRefused):
            await objects.mark(gone, "true")
        assert server.objects[path]["metadata"]["labels"] == {"a": "b"}

    run(tmp_path, test)


def test_the_status_is_written_and_a_job_that_is_gone_is_fine(tmp_path):
    async def test(server, objects):
        await objects.write_status({"phase": "Running"})
        await server.put(STATUS, {"metadata": {"uid": "successor"}, "spec": {}})
        await objects.write_status({"phase": "Running"})
        assert "status" not in server.objects[STATUS]
        await server.put(STATUS, {"metadata": {"uid": "job"}, "spec": {"steps": 1}})
        await objects.write_status({"phase": "Running"})
        assert server.objects[STATUS]["status"] == {"phase": "Running"}
        assert server.objects[STATUS]["spec"] == {"steps": 1}
        server.refuses["PATCH status"] = (422, "status.epoch: must be an integer")
        with pytest.raises(ApiRefused, match="must be an integer"):
            await objects.write_status({"phase": "x"})

    run(tmp_path, test)


def test_an_event_is_posted_once_for_each_key_by_whatever_operator(tmp_path):
    async def test(server, objects):
        for key in ("a", "a", "b"):
            await objects.record_event(RecordEvent(key, "PlanKept", "kept: it is the best"))
        assert len(server.of("events")) == 2
        event = next(iter(server.of("events").values()))
        assert event["reason"] == "PlanKept"
        assert event["regarding"]["uid"] == "job"
        server.refuses["POST events"] = (403, "forbidden")
        await objects.record_event(RecordEvent("c", "PlanKept", "kept"))

    run(tmp_path, test)


def test_an_event_is_posted_again_where_the_api_server_has_no_answer(tmp_path):
    async def test(server, objects):
        server.refuses["POST events"] = (500, "etcdserver: request timed out")
        posting = asyncio.create_task(objects.record_event(RecordEvent("a", "PlanKept", "kept")))
        await server.until(lambda found: any(method == "POST" for method, _ in found.requests))
        del server.refuses["POST events"]
        await posting
        assert len(server.of("events")) == 1

    run(tmp_path, test)


def test_pods_of_a_job_that_is_gone_are_removed_but_not_those_of_its_successor(tmp_path):
    async def test(server, objects):
        old = await server.put(f"{PATHS}/pods/old", {})
        new = await server.put(f"{PATHS}/pods/new", {})
        stale = {"metadata": {**new["metadata"], "uid": "of-the-earlier-job"}}
        await objects.remove_pods([old, stale], 0)
        assert list(server.of("pods")) == ["new"]

    run(tmp_path, test)
