"""At most one operator writes, whatever its connection or the API server goes through.

On a virtual clock, with the client and the election that run in a cluster; only what is behind the
client is not real.  A request that its sender gave up is not done if the connection had fallen
silent, and may still be done if the whole server had: both happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from random import Random
from types import SimpleNamespace

import pytest
from kubernetes.aio.client import Configuration

from heddle_operator.kube.client import ApiRefused, KubeApi
from heddle_operator.kube.leader_election import LeaderElector, LeaseSettings
from tests.fakes.virtual_time import run_virtually

HANGS = 1000
DURATION_S = 15
EVERY_S = 0.2  # between two writes of whoever leads
LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"


class Server:
    """Objects by path, and who wrote in which order; silent for everybody now and then.

    It wakes once from a silence: what had come is done before what comes later.
    """

    def __init__(self):
        self.objects = {}
        self.writes = []
        self.silent_until = 0.0
        self.versions = itertools.count(1)

    def do(self, method, path, body, who):
        if method == "GET":
            found = self.objects.get(path)
            return (200, found) if found else (404, {"message": "not found"})
        if path.startswith(LEASES):
            path = f"{LEASES}/heddle"
            held = self.objects.get(path)
            wanted = body["metadata"].get("resourceVersion")
            if (held or {}).get("metadata", {}).get("resourceVersion") != wanted:
                return 409, {"message": "conflict"}
        else:
            self.writes.append(who)
        version = str(next(self.versions))
        body = {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": version}}
        self.objects[path] = body
        return 200, body


class Connection(KubeApi):
    """The client of one operator, with a network that is silent now and then."""

    def __init__(self, server, random, who):
        super().__init__(Configuration())
        self.server_behind, self.random, self.who = server, random, who
        self.silent = SimpleNamespace(until=0.0)

    async def _request(self, method, path, body, query, content_type, limit):
        loop, server = asyncio.get_running_loop(), self.server_behind
        await asyncio.sleep(self.random.uniform(0.001, 0.05))
        await asyncio.sleep(max(0.0, self.silent.until - loop.time()))
        answer = loop.create_future()

        def arrive():
            wait_s = server.silent_until - loop.time()
            if wait_s > 0:  # a frozen server answers what had come as soon as it thaws
                loop.call_at(server.silent_until, arrive)
                return
            found = server.do(method, path, body, self.who)
            if not answer.done():
                answer.set_result(found)

        arrive()
        status, data = await answer
        await asyncio.sleep(max(0.0, self.silent.until - loop.time()))

        async def read():
            return json.dumps(data).encode()

        return SimpleNamespace(status=status, headers={}, read=read)


async def operate(server, random, who, live):
    """Operators of one pod, one after the other: each leads, writes, and ends without its lease."""
    loop = asyncio.get_running_loop()
    for life in itertools.count():
        name = f"{who}-{life}"
        api = live[who] = Connection(server, random, name)
        elector = LeaderElector(api, LeaseSettings("ns", "heddle", name, DURATION_S), loop.time)
        await elector.acquire()
        fenced = api.fenced(elector.left_s)

        async def write(fenced=fenced):
            while True:
                with contextlib.suppress(ApiRefused):
                    await fenced.patch("/api/v1/namespaces/ns/configmaps/x", {"data": {}})
                    await fenced.delete("/api/v1/namespaces/ns/pods/x", uid="x")
                await asyncio.sleep(EVERY_S)

        writing = asyncio.create_task(write())
        await elector.renew()
        # The process takes its time to end; nothing but its fence keeps it from writing on.
        await asyncio.sleep(random.uniform(0, 3 * DURATION_S))
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await api.__aexit__()


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.system) for n in (1, 2, 3))]
)
def test_of_a_thousand_hangs_none_lets_two_operators_write(seed):
    random, server, live = Random(seed), Server(), {}

    async def main():
        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(operate(server, random, who, live)) for who in "ab"]
        for _ in range(HANGS // 4):
            await asyncio.sleep(random.uniform(0, 2 * DURATION_S))
            until = loop.time() + random.uniform(0, 2.5 * DURATION_S)
            if random.random() < 0.5:
                server.silent_until = max(server.silent_until, until)
            else:
                live[random.choice("ab")].silent.until = until
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtually(main())
    terms = [who for who, _ in itertools.groupby(server.writes)]
    assert len(set(terms)) == len(terms), "an operator wrote after its successor had"
    # Three hangs of four reach the leader, and three of five of those outlast its lease.
    assert len(terms) > HANGS // 4 // 10, "the lease hardly changed hands"
