"""Kopf's events go where they belong, and Kopf never writes to the objects that it watches."""

from __future__ import annotations

import asyncio
import itertools

import kopf
import pytest

from heddle_operator.controller.watches import Handlers, configure
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import connect
from tests.fakes.api_server import an_api_server

NODE = {"metadata": {"name": "n1", "uid": "u1", "resourceVersion": "1"}}


class Followed:
    """Controller as far as handlers know them: what was put and dropped."""

    def __init__(self):
        self.calls = []
        self.is_started = asyncio.Event()

    def put(self, body):
        self.calls.append(("put", body["metadata"]["name"]))

    def drop(self, body):
        self.calls.append(("drop", body["metadata"]["name"]))

    def start(self):
        self.is_started.set()

    async def close(self):
        self.calls.append(("close", ""))


def run(tmp_path, test, namespaces=()):
    async def main():
        async with (
            an_api_server() as server,
            await connect(server.kubeconfig(tmp_path)) as api,
        ):
            cache, controller = ObjectCache(), Followed()
            handlers = Handlers(api, cache, controller, namespaces)
            await asyncio.wait_for(test(server, handlers, cache, controller), 20)

    asyncio.run(main())


def an_object(name="tiny-a-0", **labels):
    owners = [{"uid": "job", "controller": True}]
    metadata = {"name": name, "uid": name, "labels": labels, "ownerReferences": owners}
    return {"metadata": metadata, "spec": {}}


def test_every_event_goes_to_the_cache_or_to_the_jobs(tmp_path):
    async def test(server, handlers, cache, controller):
        ours = an_object(**{"heddle.dev/job": "tiny"})
        for kind in ("ADDED", "MODIFIED", None):
            await handlers.node({"type": kind, "object": NODE})
            await handlers.pod({"type": kind, "object": ours})
            await handlers.job({"type": kind, "object": an_object("tiny")})
        assert list(cache.nodes) == ["n1"]
        assert len(cache.own("Pod", "job")) == 1
        assert controller.calls == [("put", "tiny")] * 3
        await handlers.node({"type": "DELETED", "object": NODE})
        await handlers.pod({"type": "DELETED", "object": ours})
        await handlers.job({"type": "DELETED", "object": an_object("tiny")})
        assert (cache.nodes, cache.own("Pod", "job")) == ({}, ())
        assert controller.calls[-1] == ("drop", "tiny")

    run(tmp_path, test)


def test_an_epoch_is_a_config_map_of_its_job(tmp_path):
    async def test(server, handlers, cache, controller):
        body = an_object("tiny-epoch-1", **{"heddle.dev/job": "tiny"})
        await handlers.epoch({"type": "ADDED", "object": body})
        assert [b["metadata"]["name"] for b in cache.own("ConfigMap", "job")] == ["tiny-epoch-1"]

    run(tmp_path, test)


@pytest.mark.slow
def test_jobs_are_followed_once_the_cluster_could_be_listed(tmp_path):
    async def test(server, handlers, cache, controller):
        await server.put("/api/v1/nodes/n1", {})
        server.refuses["GET nodes"] = (500, "not yet")
        starting = asyncio.create_task(handlers.startup(kopf.OperatorSettings()))
        await server.until(lambda s: ("GET", "/api/v1/nodes") in s.requests)
        assert not controller.is_started.is_set()
        server.refuses.clear()
        await starting
        assert controller.is_started.is_set()
        assert list(cache.nodes) == ["n1"]
        await handlers.cleanup()
        assert controller.calls == [("close", "")]

    run(tmp_path, test)


def test_nothing_that_is_registered_leaves_finalizers_or_annotations(tmp_path):
    async def test(server, handlers, cache, controller):
        registry = kopf.OperatorRegistry()
        handlers.register(registry)
        assert sorted(h.id for h in registry._watching.get_all_handlers()) == [
            "epoch",
            "job",
            "node",
            "pod",
        ]
        assert list(registry._changing.get_all_handlers()) == []
        assert list(registry._spawning.get_all_handlers()) == []

    run(tmp_path, test)


@pytest.mark.parametrize("is_namespaced", [True, False])
def test_kopf_posts_nothing_looks_only_where_it_may_and_never_gives_up(is_namespaced):
    settings = kopf.OperatorSettings()
    configure(settings, is_namespaced)
    assert not settings.posting.enabled
    assert settings.scanning.disabled is is_namespaced
    pauses = list(itertools.islice(settings.networking.error_backoffs, 50))
    assert pauses[:3] == [0.1, 0.5, 1]
    assert set(pauses[5:]) == {5}


def test_outside_a_cluster_kopf_logs_in_as_kubectl_would(tmp_path, monkeypatch):
    async def test(server, handlers, cache, controller):
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        info = await handlers.login(logger=None, settings=kopf.OperatorSettings())
        assert info.server == f"http://127.0.0.1:{server.port}"

    run(tmp_path, test)
