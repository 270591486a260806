"""At a real API server: 20 times a connection or the server falls silent; never do two write."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack, suppress
from random import Random
from urllib.parse import urlsplit

import pytest

from heddle_operator.kube.client import ApiRefused, connect
from heddle_operator.kube.leader_election import LeaderElector, LeaseSettings
from tests.fakes.proxy import a_proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HANGS = 20
DURATION_S = 2
MAPS = "/api/v1/namespaces/default/configmaps"
WRITERS = {"labelSelector": "test=lease"}


async def operate(api, who, random):
    """Operators of one pod: each leads, writes its name, and outlives its lease for a while."""
    for life in itertools.count():
        name = f"{who}-{life}"
        elector = LeaderElector(api, LeaseSettings("default", "twenty", name, DURATION_S))
        await elector.acquire()
        fenced = api.fenced(elector.left_s)

        async def write(fenced=fenced, name=name):
            while True:
                with suppress(ApiRefused):
                    await fenced.patch(f"{MAPS}/written", {"data": {"by": name}})
                await asyncio.sleep(0.02)

        writing = asyncio.create_task(write())
        await elector.renew()
        await asyncio.sleep(random.uniform(0, 2 * DURATION_S))
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def test_of_twenty_hangs_none_lets_two_operators_write(control_plane):
    random, written = Random(27), []
    note = written.append

    async def read(api, version):
        async for event in api.watch(MAPS, 60, **WRITERS, resourceVersion=version):
            note(event["object"]["data"]["by"])

    async def main():
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(await connect(control_plane.kubeconfig))
            body = {"metadata": {"name": "written", "labels": {"test": "lease"}}}
            made = await api.create(MAPS, body)
            version = made["metadata"]["resourceVersion"]
            tasks = [asyncio.create_task(read(api, version))]
            proxies = []
            for who in "ab":
                proxy = await stack.enter_async_context(a_proxy(urlsplit(api.server).port))
                proxies.append(proxy)
                path = proxy.kubeconfig(control_plane.kubeconfig, control_plane.folder)
                through = await stack.enter_async_context(await connect(path))
                tasks.append(asyncio.create_task(operate(through, who, random)))
            for number in range(HANGS):
                await asyncio.sleep(random.uniform(0.2, DURATION_S))
                silent = proxies if number % 3 == 0 else [random.choice(proxies)]
                for proxy in silent:
                    proxy.hang()
                await asyncio.sleep(random.uniform(0, 1.5 * DURATION_S))
                for proxy in silent:
                    proxy.go_on()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await api.delete(f"{MAPS}/written", uid=made["metadata"]["uid"])

    asyncio.run(main())
    terms = [who for who, _ in itertools.groupby(written)]
    assert len(set(terms)) == len(terms), terms
    assert len(terms) > 3, terms
