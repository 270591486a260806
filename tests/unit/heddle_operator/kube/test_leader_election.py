"""One operator at a time, by a Lease at an API server in memory."""

from __future__ import annotations

import asyncio
import math
import time
from types import SimpleNamespace

import pytest

from heddle_operator.kube import leader_election
from heddle_operator.kube.client import connect
from heddle_operator.kube.leader_election import LeaderElector, LeaseSettings
from tests.fakes.api_server import an_api_server

PATH = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/heddle"


class Clock:
    """A clock that stands still but for sleeps, which end at once.

    Attributes:
        now_s: what it shows.
        due: (when, what) happens next.
    """

    def __init__(self):
        self.now_s, self.due = 0.0, (math.inf, lambda: None)

    def __call__(self):
        return self.now_s

    async def sleep(self, seconds):
        self.now_s += seconds
        if self.now_s >= self.due[0]:
            self.due[1]()
        await asyncio.sleep(0)


@pytest.fixture
def clock(monkeypatch):
    """The clock of the candidates of a test, of which one at a time sleeps."""
    found = Clock()
    monkeypatch.setattr(leader_election, "asyncio", SimpleNamespace(sleep=found.sleep))
    return found


def run(tmp_path, test, clock=time.monotonic):
    async def main():
        async with (
            an_api_server() as server,
            await connect(server.kubeconfig(tmp_path)) as api,
        ):

            def lease(identity, duration_s=1, clock=clock):
                settings = LeaseSettings("ns", "heddle", identity, duration_s)
                return LeaderElector(api, settings, clock)

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


def test_the_lease_of_a_dead_operator_is_taken_after_its_duration(tmp_path, clock):
    async def test(server, lease):
        await lease("dead", 15).acquire()
        await lease("two", 15).acquire()
        assert holder(server) == "two"
        assert 15 < clock() <= 15 + 15 / 3

    run(tmp_path, test, clock)


@pytest.mark.slow
def test_a_lease_that_is_kept_is_not_taken_though_its_clock_is_wrong(tmp_path):
    """The clock goes on after both have looked, so that a busy machine delays neither."""

    async def test(server, lease):
        now_s = [0.0]
        first = lease("one", 1, lambda: now_s[0])
        await first.acquire()
        keeping = asyncio.create_task(first.renew())
        waiting = asyncio.create_task(lease("two", 1, lambda: now_s[0]).acquire())
        for _ in range(4):
            now_s[0] += 0.5
            await server.until(lambda s: first.left_s() > 0.5)
            looks = server.requests.count(("GET", PATH))
            await server.until(lambda s, n=looks: s.requests.count(("GET", PATH)) >= n + 3)
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


def test_who_cannot_renew_stops_before_another_may_start(tmp_path, clock):
    async def test(server, lease):
        first = lease("one", 15)
        await first.acquire()
        server.refuses["PUT heddle"] = (500, "etcd is gone")
        await first.renew()
        assert clock() < 15

    run(tmp_path, test, clock)


def test_a_lease_is_kept_though_each_answer_takes_a_quarter_of_its_duration(tmp_path, clock):
    async def test(server, lease):
        first = lease("one", 16, lambda: clock() + 4.0 * len(server.requests))
        await first.acquire()
        renewing = asyncio.create_task(first.renew())
        await server.until(lambda s: renewing.done() or s.requests.count(("PUT", PATH)) >= 10)
        assert not renewing.done()
        renewing.cancel()

    run(tmp_path, test, clock)


def test_a_lease_that_was_deleted_is_made_anew(tmp_path, clock):
    async def test(server, lease):
        first = lease("one", 15)
        await first.acquire()
        await server.remove(PATH)
        renewing = asyncio.create_task(first.renew())
        await server.until(lambda s: renewing.done() or PATH in s.objects)
        assert holder(server) == "one"
        renewing.cancel()

    run(tmp_path, test, clock)


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


def test_a_renewal_that_is_refused_is_tried_again_soon(tmp_path, clock):
    """An API server that is busy refuses some, and answers long before the lease is lost."""

    async def test(server, lease):
        first = lease("one", 15)
        await first.acquire()
        server.refuses["PUT leases/heddle"] = (500, "too busy")
        clock.due = (7.5, server.refuses.clear)  # after 5 s three tries a second apart have failed
        asked = server.requests.count(("PUT", PATH))
        renewing = asyncio.create_task(first.renew())
        await server.until(lambda s: s.requests.count(("PUT", PATH)) >= asked + 5)
        assert not renewing.done()
        renewing.cancel()

    run(tmp_path, test, clock)
