"""Lists find what watches missed, in both directions."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.kube import relist as relist_module
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import ApiRefused, connect
from heddle_operator.kube.relist import relist
from tests.fakes.api_server import an_api_server

OWNER = {"uid": "job", "controller": True}
OURS = {"labels": {"heddle.dev/job": "tiny"}, "ownerReferences": [OWNER]}


def run(tmp_path, test):
    async def main():
        async with (
            an_api_server() as server,
            await connect(server.kubeconfig(tmp_path)) as api,
        ):
            await asyncio.wait_for(test(server, api, ObjectCache()), 20)

    asyncio.run(main())


def names(cache, kind):
    return [body["metadata"]["name"] for body in cache.own(kind, "job")]


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
    async def test(server, api, cache):
        await fill(server)
        await relist(api, cache)
        assert list(cache.nodes) == ["n1"]
        assert names(cache, "Pod") == ["ns-pod", "other-pod"]
        assert names(cache, "ConfigMap") == ["ns-epoch-1", "other-epoch-1"]
        assert sum(allocation.gpus for allocation in cache.allocations.values()) == 8

    run(tmp_path, test)


def test_what_is_gone_is_forgotten(tmp_path):
    async def test(server, api, cache):
        await fill(server)
        await relist(api, cache)
        for path in list(server.objects):
            if "other" in path or "nodes" in path:
                await server.remove(path)
        await relist(api, cache)
        assert list(cache.nodes) == []
        assert (names(cache, "Pod"), names(cache, "ConfigMap")) == (["ns-pod"], ["ns-epoch-1"])
        assert sum(allocation.gpus for allocation in cache.allocations.values()) == 4

    run(tmp_path, test)


def test_only_the_given_namespaces_are_looked_at(tmp_path):
    async def test(server, api, cache):
        await fill(server)
        await relist(api, cache, ("ns",))
        assert names(cache, "Pod") == ["ns-pod"]

    run(tmp_path, test)


def test_long_lists_are_read_page_by_page(tmp_path, monkeypatch):
    monkeypatch.setattr(relist_module, "CHUNK", "1")

    async def test(server, api, cache):
        await fill(server)
        await relist(api, cache)
        assert names(cache, "Pod") == ["ns-pod", "other-pod"]
        assert server.requests.count(("GET", "/api/v1/pods")) == 4

    run(tmp_path, test)


def test_a_list_that_is_refused_forgets_nothing(tmp_path):
    async def test(server, api, cache):
        await fill(server)
        await relist(api, cache)
        server.refuses["GET pods"] = (403, "forbidden")
        with pytest.raises(ApiRefused):
            await relist(api, cache)
        assert names(cache, "Pod") == ["ns-pod", "other-pod"]

    run(tmp_path, test)
