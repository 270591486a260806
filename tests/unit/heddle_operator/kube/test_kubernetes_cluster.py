"""What the adapter makes of refusals, of leftovers and of nodes; the rest is the contract suite."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from heddle_operator.apis.errors import ClusterUnavailable
from heddle_operator.epochs.members import further_pod_name
from heddle_operator.kube.client import AGAIN_S
from heddle_operator.kube.kubernetes_cluster import PODS_AT_ONCE
from heddle_operator.resources.pinned_workers import workers_to_json
from heddle_operator.resources.pods import WorkerDefaults
from heddle_operator.state.actions import AdoptPlan, CloseEpoch, CreatePod, DeletePod, PruneEpoch
from tests.unit.heddle_operator.kube.around import ADOPT, NODES, PLAN, runner

POD = CreatePod("tiny-a-0", "a", 0, 2)
NS = "/api/v1/namespaces/ns"
EVIL = workers_to_json(WorkerDefaults(image="evil:1", template={}), "another token")
FURTHER = further_pod_name("tiny-a-0", "job")
ANOTHER = {
    "ownerReferences": [
        {"uid": "another", "controller": True, "kind": "HeddleJob", "name": "tiny-a"}
    ]
}


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path)


def test_a_server_that_is_gone_is_asked_again_later(run):
    async def test(around, server):
        await server.stop()
        for action in (POD, ADOPT):
            with pytest.raises(ClusterUnavailable):
                await around.adapter.apply(action)
        assert (await around.adapter.observe()).refusals == ()

    run(test)


def test_a_server_that_names_a_time_is_asked_again_then(run):
    async def test(around, server):
        server.refuses["POST configmaps"] = (429, "too many requests")
        for told, again_s in (("7", 7.0), ("3600", AGAIN_S), ("soon", None)):
            server.again_s = told
            with pytest.raises(ClusterUnavailable) as error:
                await around.adapter.apply(ADOPT)
            assert error.value.again_s == again_s

    run(test)


def test_what_was_written_is_seen_before_any_watch_tells(run):
    async def test(around, server):
        await around.adapter.apply(ADOPT)
        await around.adapter.apply(POD)
        seen = await around.adapter.observe()
        assert [record.epoch for record in seen.epochs] == [1]
        assert [pod.name for pod in seen.pods] == ["tiny-a-0"]
        await around.adapter.apply(DeletePod("tiny-a-0", "test"))
        assert (await around.adapter.observe()).pods == ()

    run(test)


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("labels", {}, "the label heddle.dev/job"),
        ("annotations", {"heddle.dev/ordinal": "0"}, "the annotation heddle.dev/node"),
        ("ownerReferences", [], "the owner reference"),
    ],
)
def test_a_pod_that_admission_makes_unknown_is_deleted_and_said(run, field, value, what):
    async def test(around, server):
        await around.adapter.apply(ADOPT)
        server.admission = lambda body: {**body, "metadata": {**body["metadata"], field: value}}
        await around.adapter.apply(POD)
        (refusal,) = (await around.adapter.observe()).refusals
        assert (f"took {what} off pod" in refusal.message, server.of("pods")) == (True, {})
        server.admission = lambda body: body
        await around.adapter.apply(POD)
        assert server.of("pods")

    run(test)


def test_a_pod_is_asked_to_go_once_while_it_terminates(run):
    async def test(around, server):
        await around.adapter.apply(POD)
        pod = f"{NS}/pods/tiny-a-0"
        await server.put(pod, {**server.objects[pod], "spec": {"nodeName": "a", "containers": []}})
        for _ in range(3):
            await around.observe()
            await around.adapter.apply(DeletePod("tiny-a-0", "test"))
        assert server.requests.count(("DELETE", pod)) == 1
        assert (await around.observe()).pods[0].deleting

    run(test)


def test_only_the_record_that_was_seen_is_pruned(run):
    async def test(around, server):
        for epoch in (1, 2):
            await around.adapter.apply(
                AdoptPlan(epoch=epoch, plan=PLAN, reason="start", composition=NODES)
            )
        path = f"{NS}/configmaps/tiny-epoch-1"
        other = {**server.objects[path]["metadata"], "uid": "of-a-successor"}
        await server.put(path, {**server.objects[path], "metadata": other})
        await around.adapter.apply(PruneEpoch(1))
        assert path in server.objects

    run(test)


def test_a_quota_of_cpu_limits_the_gpus_that_ask_for_some(run):
    async def test(around, server):
        await around.node("a")
        quota = {"status": {"hard": {"requests.cpu": "8"}, "used": {}}}
        await server.put(f"{NS}/resourcequotas/team", quota)
        around.defaults = WorkerDefaults(image="heddle:1", template={}, per_gpu={"cpu": "8"})
        around.adapter = around.another(around.adapter.job)
        assert (await around.observe()).headroom.gpus == 1

    run(test)


def test_gpus_of_others_and_cordons_are_seen(run):
    async def test(around, server):
        await around.node("a")
        await around.node("b", unschedulable=True)
        allocation = {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
        await server.put(f"{NS}/pods/foreign", {"spec": {"nodeName": "a", **allocation}})
        a, b = (await around.observe()).nodes
        assert (a.gpus, a.is_cordoned) == (1, False)
        assert (b.gpus, b.is_cordoned) == (0, True)
        greedy = {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1k"}}}]}
        tied = {"nodeSelector": {"kubernetes.io/hostname": "a"}, **greedy}
        await server.put(f"{NS}/pods/greedy", {"spec": tied, "status": {"phase": "Pending"}})
        assert (await around.observe()).nodes[0].gpus == 1
        ended = {**server.objects[f"{NS}/pods/foreign"], "status": {"phase": "Succeeded"}}
        await server.put(f"{NS}/pods/foreign", ended)
        assert (await around.observe()).nodes[0].gpus == 2

    run(test)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_an_ended_pod_of_the_job_stays_and_frees_its_gpus_for_anybody(run, phase):
    async def test(around, server):
        await around.node("a")
        await around.adapter.apply(POD)
        path = f"{NS}/pods/tiny-a-0"
        body = server.objects[path]
        await server.put(
            path, {**body, "spec": {**body["spec"], "nodeName": "a"}, "status": {"phase": phase}}
        )
        observed = await around.observe()
        assert [pod.phase for pod in observed.pods] == ["ended"]
        assert around.cache.allocations == {}

    run(test)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"plan.json": json.dumps(PLAN.to_json())}, ""),
        ({}, "must hold the key"),
        (None, "not found"),
    ],
    ids=["a plan", "an empty map", "no map"],
)
def test_the_plan_of_mode_manual_is_read_from_its_config_map(run, data, problem):
    async def test(around, server):
        if data is not None:
            await server.put(f"{NS}/configmaps/mine", {"data": data})
        referenced = (await around.observe()).referenced
        assert referenced.plan == (PLAN if not problem else None)
        assert problem in referenced.problem

    run(test, plan_ref="mine")


def test_objects_that_anybody_may_have_forged_are_left_out(run):
    """A pod without annotations and records that are none; the job's own are seen beside them."""
    ours = {
        "labels": {"heddle.dev/job": "tiny", "heddle.dev/epoch": "2"},
        "ownerReferences": [{"uid": "job", "controller": True}],
    }
    containers = {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1k"}}}]}

    async def test(around, server):
        await around.node(gpus=2)
        await around.adapter.apply(ADOPT)
        await around.adapter.apply(POD)
        await server.put(f"{NS}/pods/forged", {"metadata": ours, "spec": containers})
        await server.put(f"{NS}/pods/huge", {"spec": {**containers, "nodeName": "other"}})
        record = server.objects[f"{NS}/configmaps/tiny-epoch-1"]["data"]
        for number, data in enumerate(
            (None, {}, {"plan": "["}, {**record, "outcome": "x"}, {**record, "adoptedAt": "?"})
        ):
            await server.put(f"{NS}/configmaps/odd-{number}", {"metadata": ours, "data": data})
        observed = await around.observe()
        assert [pod.name for pod in observed.pods] == ["tiny-a-0"]
        assert [record.epoch for record in observed.epochs] == [1]
        assert around.cache.allocations[server.objects[f"{NS}/pods/huge"]["metadata"]["uid"]].gpus

    run(test)


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_times_are_right_though_the_clock_of_this_machine_is_an_hour_off(run, ahead_s):
    async def test(around, server):
        server.ahead_s = ahead_s
        await around.api.get("/api/v1/nodes")
        adapter = around.adapter = around.another(around.adapter.job)
        await around.node()
        await adapter.apply(POD)
        now = time.monotonic()
        (pod,) = (await around.observe()).pods
        assert abs(pod.created_s - now) < 20, "far below an hour, and below the ages that follow"
        for age_s, phase in ((30, "ended"), (-30, "pending")):
            gone = datetime.now(UTC) + timedelta(seconds=ahead_s - age_s)
            path = f"{NS}/pods/tiny-a-0"
            metadata = {**server.objects[path]["metadata"], "deletionTimestamp": gone.isoformat()}
            await server.put(path, {**server.objects[path], "metadata": metadata})
            await server.put("/api/v1/nodes/a", {"status": {}})
            (pod,) = (await around.observe()).pods
            assert pod.phase == phase

    run(test)


EARLIER_JOB = {
    "ownerReferences": [{"uid": "earlier", "controller": True, "kind": "HeddleJob", "name": "tiny"}]
}


@pytest.mark.parametrize(
    ("metadata", "names"),
    [(EARLIER_JOB, []), (ANOTHER, [FURTHER]), ({}, [FURTHER])],
    ids=["of an earlier job", "of another job", "of somebody"],
)
def test_a_pod_has_a_further_name_where_somebody_elses_has_its_own(run, metadata, names):
    async def test(around, server):
        await around.node()
        held = await server.put(f"{NS}/pods/tiny-a-0", {"metadata": metadata, "spec": {}})
        await around.adapter.apply(ADOPT)
        for _ in range(2):
            await around.adapter.apply(POD)
        seen = await around.observe()
        assert [(pod.name, pod.node, pod.ordinal) for pod in seen.pods] == [
            (name, "a", 0) for name in names
        ]
        assert len(seen.refusals) == (0 if names else 1)
        assert server.objects[f"{NS}/pods/tiny-a-0"] == held

    run(test)


def test_a_job_goes_on_with_the_image_and_template_that_it_started_with(run):
    """An upgraded operator has others; the author's own change is another thing."""

    async def test(around, server):
        await around.node(gpus=2)
        await around.adapter.apply(ADOPT)
        await around.adapter.apply(CloseEpoch(epoch=1, outcome="live", message=""))
        newer = {"spec": {"priorityClassName": "new"}}
        around.defaults = WorkerDefaults(image="heddle:2", template=newer)
        upgraded = around.another(around.adapter.job)
        await upgraded.apply(POD)
        await upgraded.apply(AdoptPlan(epoch=2, plan=PLAN, reason="join", composition=NODES))
        await upgraded.apply(CreatePod("tiny-a-1", "a", 1, 1))
        for name in ("tiny-a-0", "tiny-a-1"):
            spec = server.objects[f"{NS}/pods/{name}"]["spec"]
            assert spec["containers"][0]["image"] == "heddle:1"
            assert "priorityClassName" not in spec
        await upgraded.apply(AdoptPlan(epoch=3, plan=PLAN, reason="start", composition=NODES))
        await upgraded.apply(CreatePod("tiny-a-2", "a", 2, 1))
        spec = server.objects[f"{NS}/pods/tiny-a-2"]["spec"]
        assert (spec["containers"][0]["image"], spec["priorityClassName"]) == ("heddle:2", "new")

    run(test)


def test_a_record_in_another_namespace_is_no_record_of_the_job(run):
    """Whoever may write there can give it the labels and the owner of one."""

    async def test(around, server):
        await around.adapter.apply(ADOPT)
        body = server.objects[f"{NS}/configmaps/tiny-epoch-1"]
        metadata = {**body["metadata"], "uid": "forged", "namespace": "elsewhere"}
        path = "/api/v1/namespaces/elsewhere/configmaps/tiny-epoch-1"
        await server.put(path, {**body, "metadata": metadata})
        assert len((await around.observe()).epochs) == 1

    run(test)


def test_a_node_that_comes_back_is_a_new_one(run):
    async def test(around, server):
        await around.node("b")
        await around.node("a")
        first = {node.name: node.joined_at_s for node in (await around.observe()).nodes}["a"]
        await server.remove("/api/v1/nodes/a")
        await around.observe()
        await around.node("a")
        again = {node.name: node.joined_at_s for node in (await around.observe()).nodes}["a"]
        assert again > first

    run(test)


@pytest.mark.parametrize("forged", ["", "[]", "{}", EVIL])
def test_a_forged_pin_is_as_none(run, forged):
    async def test(around, server):
        await around.adapter.apply(ADOPT)
        path = f"{NS}/configmaps/tiny-epoch-1"
        body = server.objects[path]
        await server.put(path, {**body, "data": {**body["data"], "workers": forged}})
        await around.observe()
        await around.adapter.apply(POD)
        spec = server.objects[f"{NS}/pods/tiny-a-0"]["spec"]
        assert spec["containers"][0]["image"] == "heddle:1"

    run(test)


def test_pods_of_two_jobs_with_the_network_of_one_host_have_two_ports_and_a_third_is_refused(run):
    async def test(around, server):
        await around.node("a", gpus=3)
        around.defaults = WorkerDefaults(
            image="heddle:1", template={"spec": {"hostNetwork": True}}, host_ports="9000-9001"
        )
        job = around.adapter.job
        other = job.model_copy(
            update={"metadata": job.metadata.model_copy(update={"uid": "b", "name": "other"})}
        )
        ours, theirs = around.another(job), around.another(other)
        await ours.apply(ADOPT)
        await ours.apply(CreatePod("tiny-a-0", "a", 0, 1))
        await theirs.apply(CreatePod("other-a-0", "a", 0, 1))
        await ours.apply(CreatePod("tiny-a-1", "a", 1, 1))
        pods = [body["spec"]["containers"][0]["ports"] for body in server.of("pods").values()]
        assert sorted(row["containerPort"] for (row,) in pods) == [9000, 9001]
        (refused,) = (await ours.observe()).refusals
        assert refused.name == "tiny-a-1"

    run(test)


def test_a_job_that_makes_many_pods_leaves_connections_to_others(run, monkeypatch):
    async def test(around, server):
        answered, post, waiting = asyncio.Event(), server._post, []

        async def slow(request, path):
            waiting.append(path)
            await answered.wait()
            return await post(request, path)

        monkeypatch.setattr(server, "_post", slow)
        pods = [CreatePod(f"tiny-a-{number}", "a", number, 1) for number in range(100)]
        making = asyncio.gather(*map(around.adapter.apply, pods))
        await server.until(lambda _: len(waiting) == PODS_AT_ONCE)
        async with asyncio.timeout(5):
            await around.api.get("/api/v1/nodes")
        assert len(waiting) == PODS_AT_ONCE
        answered.set()
        await making
        assert len(server.of("pods")) == len(pods)

    run(test)


def test_a_job_with_pods_is_seen_beside_a_webhook_that_hangs(run, monkeypatch):
    async def test(around, server):
        await around.node()
        await around.adapter.apply(ADOPT)
        restarted, asked = around.another(around.adapter.job), []

        async def hang(request, path):
            asked.append(path)
            await asyncio.sleep(60)

        monkeypatch.setattr(server, "_post", hang)
        async with asyncio.timeout(5):
            assert len((await restarted.observe()).epochs) == 1
        await server.until(lambda _: asked)
        await restarted.close()

    run(test)
