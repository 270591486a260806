"""What an operator reflects, and into what; lists find what watches missed, in both directions."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.kube import reflector as reflector_module
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import ApiRefused, connect
from heddle_operator.kube.reflections import job_reflectors, reflectors
from tests.fakes.api_server import an_api_server

OWNER = {"uid": "job", "controller": True}
OURS = {"labels": {"heddle.dev/job": "tiny"}, "ownerReferences": [OWNER]}


class Reflected:
    """A cache and what fills it."""

    def __init__(self, api, namespaces=(), all_pods=False):
        self.cache = ObjectCache()
        self.reflectors = reflectors(api, self.cache, namespaces, all_pods)

    async def list(self):
        for reflector in self.reflectors:
            await reflector.list()
        return self.cache


def run(tmp_path, test):
    async def main():
        async with (
            an_api_server() as server,
            await connect(server.kubeconfig(tmp_path)) as api,
        ):
            await asyncio.wait_for(test(server, api, Reflected(api)), 20)

    asyncio.run(main())


def names(cache, kind):
    found = [*cache.own(kind, "ns", "job"), *cache.own(kind, "other", "job")]
    return [body["metadata"]["name"] for body in found]


async def fill(server):
    await server.put("/api/v1/nodes/n1", {"kind": "Node"})
    spec = {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}
    for namespace in ("ns", "other"):
        pods = f"/api/v1/namespaces/{namespace}/pods"
        await server.put(f"{pods}/{namespace}-pod", {"metadata": OURS, "spec": spec})
        await server.put(f"{pods}/{namespace}-foreign", {"spec": spec})
        maps = f"/api/v1/namespaces/{namespace}/configmaps"
        await server.put(f"{maps}/{namespace}-epoch-1", {"metadata": OURS})
        await server.put(f"{maps}/{namespace}-foreign", {})


def test_nodes_claims_and_the_jobs_own_objects_are_taken_over(tmp_path):
    async def test(server, api, reflected):
        await fill(server)
        cache = await reflected.list()
        assert list(cache.nodes) == ["n1"]
        assert names(cache, "Pod") == ["ns-pod", "other-pod"]
        assert names(cache, "ConfigMap") == ["ns-epoch-1", "other-epoch-1"]
        assert sum(allocation.gpus for allocation in cache.allocations.values()) == 8

    run(tmp_path, test)


def test_what_is_gone_is_forgotten(tmp_path):
    async def test(server, api, reflected):
        await fill(server)
        cache = await reflected.list()
        for path in list(server.objects):
            if "other" in path or "nodes" in path:
                await server.remove(path)
        cache = await reflected.list()
        assert list(cache.nodes) == []
        assert (names(cache, "Pod"), names(cache, "ConfigMap")) == (["ns-pod"], ["ns-epoch-1"])
        assert sum(allocation.gpus for allocation in cache.allocations.values()) == 4

    run(tmp_path, test)


def test_only_the_given_namespaces_are_looked_at(tmp_path):
    async def test(server, api, reflected):
        await fill(server)
        cache = await Reflected(api, ("ns",)).list()
        assert names(cache, "Pod") == ["ns-pod"]

    run(tmp_path, test)


def test_gpus_that_pods_of_other_namespaces_hold_are_seen_where_all_pods_may_be_read(tmp_path):
    async def test(server, api, reflected):
        await fill(server)
        for all_pods, gpus in ((False, 4), (True, 8)):
            one = Reflected(api, ("ns",), all_pods)
            cache = await one.list()
            assert sum(allocation.gpus for allocation in cache.allocations.values()) == gpus
            assert names(cache, "ConfigMap") == ["ns-epoch-1"]
        for path in list(server.objects):
            if "other" in path:
                await server.remove(path)
        cache = await one.list()
        assert sum(allocation.gpus for allocation in cache.allocations.values()) == 4

    run(tmp_path, test)


QUOTA = {"status": {"hard": {"pods": "3"}}}


def test_quotas_are_taken_over_and_tell_their_namespace_once_for_each_change(tmp_path):
    async def test(server, api, reflected):
        told = []
        cache = ObjectCache(on_quota=told.append)
        found = {str(r): r for r in reflectors(api, cache, ("ns", "other"))}
        quotas = [r for name, r in found.items() if "resourcequotas" in name]
        for namespace in ("ns", "other"):
            await server.put(f"/api/v1/namespaces/{namespace}/resourcequotas/team", QUOTA)
        for reflector in (*quotas, *quotas):
            await reflector.list()
        assert [len(cache.quotas(name)) for name in ("ns", "other", "")] == [1, 1, 0]
        await server.remove("/api/v1/namespaces/other/resourcequotas/team")
        for reflector in quotas:
            await reflector.list()
        assert [len(cache.quotas(name)) for name in ("ns", "other")] == [1, 0]
        assert told == ["ns", "other", "other"]

    run(tmp_path, test)


def test_quotas_that_may_not_be_read_count_as_none_and_keep_nobody_waiting(tmp_path):
    async def test(server, api, reflected):
        await server.put("/api/v1/namespaces/ns/resourcequotas/team", QUOTA)
        (reflector,) = (one for one in reflected.reflectors if "resourcequotas" in str(one))
        await reflector.list()
        assert len(reflected.cache.quotas("ns")) == 1
        reflector.is_synced.clear()
        server.refuses["GET resourcequotas"] = (403, "forbidden")
        task = asyncio.create_task(reflector.run())
        await reflector.is_synced.wait()
        assert reflected.cache.quotas("ns") == ()
        assert reflector.problem(1e9) == ""
        task.cancel()

    run(tmp_path, test)


def test_long_lists_are_read_page_by_page(tmp_path, monkeypatch):
    monkeypatch.setattr(reflector_module, "PAGE", "1")

    async def test(server, api, reflected):
        await fill(server)
        cache = await reflected.list()
        assert names(cache, "Pod") == ["ns-pod", "other-pod"]
        assert server.requests.count(("GET", "/api/v1/pods")) == 4

    run(tmp_path, test)


def test_a_list_that_is_refused_forgets_nothing(tmp_path):
    async def test(server, api, reflected):
        await fill(server)
        cache = await reflected.list()
        server.refuses["GET pods"] = (403, "forbidden")
        with pytest.raises(ApiRefused):
            await reflected.list()
        assert names(cache, "Pod") == ["ns-pod", "other-pod"]

    run(tmp_path, test)


def test_pods_of_others_that_have_ended_are_never_sent(tmp_path):
    async def test(server, api, reflected):
        await fill(server)
        pod = "/api/v1/namespaces/ns/pods/ns-foreign"
        await server.put(pod, {**server.objects[pod], "status": {"phase": "Succeeded"}})
        cache = await reflected.list()
        assert sum(allocation.gpus for allocation in cache.allocations.values()) == 6
        (others,) = [r for r in reflected.reflectors if r.selectors.get("fieldSelector")]
        page = await api.get("/api/v1/pods", **others.selectors)
        assert [body["metadata"]["name"] for body in page["items"]] == ["other-foreign"]

    run(tmp_path, test)


def test_an_object_that_was_made_after_the_list_is_kept(tmp_path):
    async def test(server, api, reflected):
        await fill(server)
        cache = await reflected.list()
        metadata = {**OURS, "uid": "new", "name": "new", "namespace": "ns"}
        cache.put("Pod", {"metadata": {**metadata, "resourceVersion": "1000"}, "spec": {}})
        await reflected.list()
        assert "new" in names(cache, "Pod")

    run(tmp_path, test)


def test_jobs_that_are_gone_are_told_by_what_a_list_lacks(tmp_path):
    class Jobs:
        calls, told = (), ()

        def seen(self, body):
            self.told = (*self.told, body["metadata"]["name"])

        def keep_only(self, namespace, uids, version):
            self.calls = (*self.calls, (namespace, len(uids)))

    async def test(server, api, reflected):
        jobs = Jobs()
        await server.put("/apis/heddle.dev/v1alpha1/namespaces/ns/heddlejobs/tiny", {})
        for reflector in (*job_reflectors(api, jobs), *job_reflectors(api, jobs, ("ns", "x"))):
            await reflector.list()
        assert jobs.calls == (("", 1), ("ns", 1), ("x", 0))
        assert jobs.told == ("tiny", "tiny")

    run(tmp_path, test)


def test_a_defect_in_what_is_told_costs_a_list_and_not_the_reflector(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(reflector_module, "PAUSES_S", (0.01, 0.01))

    class Broken(ObjectCache):
        breaks = True

        def put_node(self, node):
            if self.breaks:
                self.breaks = False
                raise SystemError("a defect")
            super().put_node(node)

    async def test(server, api, reflected):
        await server.put("/api/v1/nodes/n1", {})
        cache = Broken()
        (nodes,) = [r for r in reflectors(api, cache) if str(r) == "/api/v1/nodes"]
        task = asyncio.create_task(nodes.run())
        await nodes.is_synced.wait()
        assert list(cache.nodes) == ["n1"]
        assert "is listed anew" in caplog.text
        task.cancel()

    run(tmp_path, test)


def test_a_server_that_forgets_every_version_at_once_is_listed_ever_more_seldom(tmp_path):
    async def test(server, api, reflected):
        server.forgotten = 1 << 60
        reflector = reflected.reflectors[0]
        task = asyncio.create_task(reflector.run())
        await asyncio.sleep(1)
        task.cancel()
        assert 1 < reflector.lists < 6

    run(tmp_path, test)


def test_watches_that_are_cut_off_at_once_are_begun_ever_more_seldom(tmp_path):
    async def test(server, api, reflected):
        server.cuts = True
        (nodes,) = [r for r in reflected.reflectors if str(r) == "/api/v1/nodes"]
        task = asyncio.create_task(nodes.run())
        await asyncio.sleep(1)
        task.cancel()
        assert 3 < server.requests.count(("GET", "/api/v1/nodes")) < 8

    run(tmp_path, test)


def test_where_all_watches_are_cut_off_a_list_tells_what_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(reflector_module, "SILENT_S", 0.5)

    async def test(server, api, reflected):
        server.cuts = True
        (nodes,) = [r for r in reflected.reflectors if str(r) == "/api/v1/nodes"]
        task = asyncio.create_task(nodes.run())
        await nodes.is_synced.wait()
        await server.put("/api/v1/nodes/n1", {})
        lists = nodes.lists
        await server.until(lambda _: nodes.lists > lists and "n1" in reflected.cache.nodes)
        task.cancel()

    run(tmp_path, test)


def test_a_server_is_not_asked_again_before_the_time_that_it_names(tmp_path):
    async def test(server, api, reflected):
        server.refuses["GET nodes"], server.again_s = (429, "too many requests"), "20"
        (nodes,) = [r for r in reflected.reflectors if str(r) == "/api/v1/nodes"]
        task = asyncio.create_task(nodes.run())
        await asyncio.sleep(1)
        task.cancel()
        assert nodes.lists == 1

    run(tmp_path, test)


def test_a_version_that_is_forgotten_after_a_watch_is_listed_at_once(tmp_path, monkeypatch):
    tries = []

    def doubled_s(first_s, times, limit_s):
        tries.append(times)
        return 0.1

    monkeypatch.setattr(reflector_module, "doubled_s", doubled_s)

    class Told:
        def __init__(self):
            self.event = asyncio.Event()

        def node_changed(self, name):
            self.event.set()

    async def test(server, api, reflected):
        (nodes,) = [r for r in reflected.reflectors if str(r) == "/api/v1/nodes"]
        told = Told()
        reflected.cache.followers.add(told)
        task = asyncio.create_task(nodes.run())
        await nodes.is_synced.wait()
        await server.put("/api/v1/nodes/n1", {})
        await told.event.wait()
        server.forgotten = 1 << 60
        await server.stop()  # which ends the watch
        await server.start()
        # A list and a watch; a watch, and a list at once; a watch, a pause and a list.
        await server.until(lambda s: s.requests.count(("GET", "/api/v1/nodes")) == 6)
        task.cancel()
        assert tries[-1] == 1, "the list at once was no try"

    run(tmp_path, test)
