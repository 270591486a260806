"""One operator at a time, by a Lease at an API server in memory."""

from __future__ import annotations

import asyncio
import time

import pytest

from heddle_operator.kube.client import connect
from heddle_operator.kube.leader_election import LeaderElector, LeaseSettings
from tests.fakes.api_server import an_api_server

PATH = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/heddle"


def run(tmp_path, test):
    async def main():
        async with (
            an_api_server() as server,
            await connect(server.kubeconfig(tmp_path)) as api,
        ):

            def lease(identity, duration_s=1):
                return LeaderElector(api, LeaseSettings("ns", "heddle", identity, duration_s))

            await asyncio.wait_for(test(server, lease), 20)

    asyncio.run(main())


def holder(server):
    return server.objects[PATH]["spec"]["holderIdentity"]


def test_a_free_lease_is_taken_with_identity_duration_and_times(tmp_path):
    async def test(server, lease):
        await lease("one", 15).acquire()
        spec = server.objects[PATH]["spec"]
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("one", 15)
        assert spec["leaseTransitions"] == 1
        assert spec["acquireTime"] == spec["renewTime"]

    run(tmp_path, test)


def test_a_held_lease_is_waited_for_until_it_is_released(tmp_path):
    async def test(server, lease):
        first, second = lease("one", 15), lease("two")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await server.until(lambda s: s.requests.count(("GET", PATH)) >= 3)
        assert not waiting.done()
        await first.release()
        await waiting
        assert holder(server) == "two"
        assert server.objects[PATH]["spec"]["leaseTransitions"] == 2

    run(tmp_path, test)


@pytest.mark.slow
def test_the_lease_of_a_dead_operator_is_taken_after_its_duration(tmp_path):
    async def test(server, lease):
        await lease("dead", 1).acquire()
        started_s = time.monotonic()
        await lease("two").acquire()
        assert holder(server) == "two"
        assert time.monotonic() - started_s > 1.0

    run(tmp_path, test)


@pytest.mark.slow
def test_a_lease_that_is_kept_is_not_taken_though_its_clock_is_wrong(tmp_path):
    async def test(server, lease):
        first = lease("one", 1)
        await first.acquire()
        keeping = asyncio.create_task(first.renew())
        waiting = asyncio.create_task(lease("two").acquire())
        writes = ("PUT", PATH)
        await server.until(lambda s: s.requests.count(writes) >= 5)
        assert not waiting.done()
        assert holder(server) == "one"
        waiting.cancel()
        keeping.cancel()
        await asyncio.gather(keeping, waiting, return_exceptions=True)

    run(tmp_path, test)


def test_who_lost_the_lease_stops(tmp_path):
    async def test(server, lease):
        first = lease("one", 1)
        await first.acquire()
        body = server.objects[PATH]
        await server.put(PATH, {**body, "spec": {**body["spec"], "holderIdentity": "two"}})
        await first.renew()
        await first.release()
        assert holder(server) == "two"

    run(tmp_path, test)


@pytest.mark.slow
def test_who_cannot_renew_stops_before_another_may_start(tmp_path):
    async def test(server, lease):
        first = lease("one", 1)
        await first.acquire()
        started_s = time.monotonic()
        server.refuses["GET heddle"] = (500, "etcd is gone")
        await first.renew()
        assert time.monotonic() - started_s < 1.2

    run(tmp_path, test)


def test_a_lost_race_is_no_error(tmp_path):
    async def test(server, lease):
        first, second = lease("one", 15), lease("two", 15)
        done, waiting = await asyncio.wait(
            {asyncio.create_task(first.acquire()), asyncio.create_task(second.acquire())},
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert (len(done), len(waiting)) == (1, 1)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(tmp_path, test)


def test_a_renewal_that_is_refused_is_tried_again_soon(tmp_path):
    """An API server that is busy refuses some, and answers long before the lease is lost."""

    async def test(server, lease):
        first = lease("one", 9)
        await first.acquire()
        server.refuses["PUT leases/heddle"] = (500, "too busy")
        renewing = asyncio.create_task(first.renew())
        asked = server.requests.count(("PUT", PATH))
        await server.until(lambda s: s.requests.count(("PUT", PATH)) >= asked + 3)
        assert first.left_s() > 0
        server.refuses.clear()
        await server.until(lambda s: s.requests.count(("PUT", PATH)) >= asked + 4)
        assert not renewing.done()
        renewing.cancel()

    run(tmp_path, test)
