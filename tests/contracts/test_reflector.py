"""A reflector keeps its sink equal to the API server, whatever its watch goes through."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from urllib.parse import urlsplit

import pytest

from heddle_operator.kube import reflector as reflector_module
from heddle_operator.kube.client import ApiRefused, connect
from heddle_operator.kube.reflector import Collection, Reflector
from tests.fakes.api_server import an_api_server
from tests.fakes.proxy import a_proxy

MINE = {"labelSelector": "heddle.dev/job"}


class Names:
    """A sink: names by uid, and what was told."""

    def __init__(self):
        self.held = {}
        self.changed = asyncio.Event()

    def put(self, body):
        self.held[body["metadata"]["uid"]] = body["metadata"]["name"]
        self.changed.set()

    def drop(self, body):
        self.held.pop(body["metadata"]["uid"], None)
        self.changed.set()

    def keep(self, uids, version, /):
        self.held = {uid: name for uid, name in self.held.items() if uid in uids}
        self.changed.set()

    async def are(self, *names):
        """Wait until it holds exactly these."""
        while sorted(self.held.values()) != sorted(names):
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 20)


@pytest.fixture(
    params=["fake", pytest.param("real", marks=[pytest.mark.slow, pytest.mark.cluster])]
)
def run(request, tmp_path, monkeypatch):
    """Run a test with a reflector behind a proxy, and a connection that does not take it."""
    monkeypatch.setattr(reflector_module, "PAUSES_S", (0.01, 0.1))

    @contextlib.asynccontextmanager
    async def server():
        if request.param == "real":
            plane = request.getfixturevalue("control_plane")

            def restart(_):  # a new one knows no history
                plane.stop_api_server()
                plane.start_api_server()

            yield plane.kubeconfig, restart
        else:
            async with an_api_server() as fake:

                def forget(version):
                    fake.forgotten = version

                yield fake.kubeconfig(tmp_path), forget

    def run(test):
        async def main():
            async with server() as (kubeconfig, forget), await connect(kubeconfig) as api:
                port = urlsplit(api.server).port
                async with a_proxy(port) as proxy:
                    through = proxy.kubeconfig(kubeconfig, tmp_path)
                    async with await connect(through) as watching:
                        name = f"test-{secrets.token_hex(4)}"
                        await api.create("/api/v1/namespaces", {"metadata": {"name": name}})
                        maps = f"/api/v1/namespaces/{name}/configmaps"
                        names = Names()
                        reflector = Reflector(watching, Collection(maps, MINE), names)
                        task = asyncio.create_task(reflector.run())
                        try:
                            work = test(api, maps, reflector, names, proxy, forget)
                            await asyncio.wait_for(work, 60)
                        finally:
                            task.cancel()
                            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(main())

    return run


def a_map(name, **labels):
    return {"metadata": {"name": name, "labels": {"heddle.dev/job": "tiny", **labels}}}


async def delete(api, maps, name):
    held = await api.get(f"{maps}/{name}")
    await api.delete(f"{maps}/{name}", uid=held["metadata"]["uid"])


async def create(api, maps, *names):
    return [await api.create(maps, a_map(name)) for name in names]


def test_what_was_there_comes_and_goes_is_told_and_nothing_else(run):
    async def test(api, maps, reflector, names, proxy, forget):
        assert "is not listed yet" in reflector.problem(0.0)
        await create(api, maps, "a")
        await api.create(maps, {"metadata": {"name": "foreign"}})
        await names.are("a")
        await create(api, maps, "b")
        await names.are("a", "b")
        await api.patch(f"{maps}/a", {"metadata": {"labels": {"heddle.dev/job": None}}})
        await names.are("b")
        await delete(api, maps, "b")
        await names.are()
        assert reflector.lists == 1
        assert reflector.problem(0.0) == ""

    run(test)


def test_a_watch_that_broke_goes_on_where_it_was_without_a_list(run):
    async def test(api, maps, reflector, names, proxy, forget):
        await create(api, maps, "a", "b")
        await names.are("a", "b")
        await proxy.cut()
        await delete(api, maps, "a")
        await create(api, maps, "c")
        await proxy.start()
        await names.are("b", "c")
        assert reflector.lists == 1

    run(test)


def test_after_a_410_one_list_tells_what_was_deleted_in_the_gap(run):
    async def test(api, maps, reflector, names, proxy, forget):
        await create(api, maps, "a", "b")
        await names.are("a", "b")
        await proxy.cut()
        await delete(api, maps, "a")
        (made,) = await create(api, maps, "c")
        await asyncio.to_thread(forget, int(made["metadata"]["resourceVersion"]))
        await proxy.start()
        await names.are("b", "c")
        await create(api, maps, "d")
        await names.are("b", "c", "d")
        assert reflector.lists == 2

    run(test)


def test_a_watch_without_a_word_is_said_to_be_dead(run):
    async def test(api, maps, reflector, names, proxy, forget):
        await create(api, maps, "a")
        await names.are("a")
        now = asyncio.get_running_loop().time()
        assert reflector.problem(now) == ""
        assert "nothing was heard" in reflector.problem(now + reflector_module.SILENT_S + 5)

    run(test)


def test_a_list_from_before_what_was_seen_is_not_believed(tmp_path):
    async def main():
        async with an_api_server() as server, await connect(server.kubeconfig(tmp_path)) as api:
            maps, names = "/api/v1/namespaces/default/configmaps", Names()
            reflector = Reflector(api, Collection(maps, MINE), names)
            await create(api, maps, "a", "b")
            await reflector.list()
            server.lose_data()
            with pytest.raises(ApiRefused, match="version 0, after 2 was seen"):
                await reflector.list()
            assert sorted(names.held.values()) == ["a", "b"]
            await create(api, maps, "c", "d", "e")
            await reflector.list()
            assert sorted(names.held.values()) == ["c", "d", "e"], "what is newer is believed"

    asyncio.run(main())


def test_what_a_watch_told_counts_as_seen(run):
    async def test(api, maps, reflector, names, proxy, forget):
        await reflector.is_synced.wait()
        await create(api, maps, "a")
        await names.are("a")
        held = await api.get(f"{maps}/a")
        assert reflector._newest == int(held["metadata"]["resourceVersion"])

    run(test)
