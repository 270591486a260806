"""Kopf's events go where they belong, and Kopf never writes to the objects that it watches."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from types import SimpleNamespace

import kopf
import pytest
from yarl import URL

from heddle_operator.controller.watches import Handlers, WatchPauses, configure
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import connect
from heddle_operator.kube.reflections import reflectors
from tests.fakes.api_server import an_api_server
from tests.fakes.virtual_time import run_virtually


class Followed:
    """Controller as far as handlers know them: what was put and dropped."""

    def __init__(self):
        self.calls = []
        self.is_started = asyncio.Event()

    def put(self, body):
        self.calls.append(("put", body["metadata"]["name"]))

    def drop(self, body):
        self.calls.append(("drop", body["metadata"]["name"]))

    def start(self, listed):
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
            found = reflectors(api, cache, namespaces)
            handlers = Handlers(api, controller, found, bool(namespaces))
            await asyncio.wait_for(test(server, handlers, found, controller), 20)

    asyncio.run(main())


def test_every_event_of_a_job_goes_to_the_controller(tmp_path):
    async def test(server, handlers, reflectors, controller):
        body = {"metadata": {"name": "tiny", "uid": "1"}}
        for kind in ("ADDED", "MODIFIED", None):
            await handlers.job({"type": kind, "object": body})
        assert controller.calls == [("put", "tiny")] * 3
        await handlers.job({"type": "DELETED", "object": body})
        assert controller.calls[-1] == ("drop", "tiny")

    run(tmp_path, test)


def test_jobs_are_followed_once_every_collection_was_listed(tmp_path):
    async def test(server, handlers, reflectors, controller):
        starting = asyncio.create_task(handlers.startup(kopf.OperatorSettings()))
        *first, last = reflectors
        for reflector in first:
            await reflector.list()
        assert not controller.is_started.is_set()
        await last.list()
        await starting
        assert controller.is_started.is_set()

    run(tmp_path, test)


def test_nothing_that_is_registered_leaves_finalizers_or_annotations(tmp_path):
    async def test(server, handlers, reflectors, controller):
        registry = kopf.OperatorRegistry()
        handlers.register(registry)
        assert [h.id for h in registry._watching.get_all_handlers()] == ["job"]
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
    async def test(server, handlers, reflectors, controller):
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        info = await handlers.login(logger=None, settings=kopf.OperatorSettings())
        assert info.server == f"http://127.0.0.1:{server.port}"
        await handlers.close()

    run(tmp_path, test)


def test_credentials_that_were_refused_once_are_known_when_they_come_again(tmp_path, monkeypatch):
    async def test(server, handlers, reflectors, controller):
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        first, again = [
            await handlers.login(logger=None, settings=kopf.OperatorSettings()) for _ in range(2)
        ]
        assert first.aiohttp_session.closed
        assert not again.aiohttp_session.closed
        assert first == again, "else Kopf would log in for ever without a pause"
        await handlers.close()
        assert again.aiohttp_session.closed

    run(tmp_path, test)


def asked_in(seconds, lives_s, **query):
    """Requests for two collections, one after the other, that end after so many seconds each."""
    asked = Counter()

    async def follow(path, pauses):
        url = URL(f"http://server{path}").with_query(query)
        while True:
            await pauses(SimpleNamespace(url=url), ending)
            asked[path] += 1

    async def ending(_):
        await asyncio.sleep(lives_s)

    async def main():
        pauses = WatchPauses()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(follow(path, pauses) for path in ("/jobs", "/namespaces")))

    run_virtually(main())
    return asked


def test_watches_that_are_cut_off_follow_each_other_seldom():
    assert asked_in(600, 0.001, watch="true") == {"/jobs": 125, "/namespaces": 125}


def test_watches_that_live_and_other_requests_never_wait():
    assert set(asked_in(600, 1.0, watch="true").values()) == {599}
    assert set(asked_in(600, 0.1).values()) == {5999}
