"""Whatever the API server stores, the operator stays up and follows the other jobs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

import pytest

from heddle_operator.command import DEEPEST
from heddle_operator.kube.client import ApiRefused, connect
from tests.builders import heddle_job
from tests.cluster.installation import start_operator
from tests.contracts.odd_objects import Strangers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
JOBS = "/apis/heddle.dev/v1alpha1/namespaces/default/heddlejobs"
STORED = 1000
AT_ONCE = 16


def a_job(name):
    """A job that the operator answers at once: there is no such model."""
    return heddle_job(name, model={"name": "no-such-model"})


async def create(plane, path, *bodies):
    """Create objects of one collection; the last of them, as it is stored."""
    async with await connect(plane.kubeconfig) as api:
        return [await api.create(path, body) for body in bodies][-1]


def answered_s(plane, name):
    """Seconds until the operator has answered a new job."""
    started_s = time.monotonic()
    asyncio.run(create(plane, JOBS, a_job(name)))
    plane.api.wait(JOBS, lambda jobs: "status" in jobs.get(name, {}), 60, f"an answer to {name}")
    return time.monotonic() - started_s


async def store(plane, strangers):
    """Store objects until there are enough; how many of each kind."""
    found, numbers = {}, iter(range(100_000))

    async def one(api):
        while sum(found.values()) < STORED:
            path, body = strangers.draw(next(numbers))
            with contextlib.suppress(ApiRefused):  # it cannot be stored: not what this is about
                made = await api.create(path, body)
                kind = path.rsplit("/", 1)[1]
                found[kind] = found.get(kind, 0) + 1
                if kind == "nodes" and body["status"]:
                    where = f"{path}/{made['metadata']['name']}/status"
                    await api.patch(where, {"status": body["status"]})

    async with await connect(plane.kubeconfig) as api:
        await asyncio.gather(*(one(api) for _ in range(AT_ONCE)))
    return found


def deep_job(name, levels):
    """A job whose template holds something that deep, where an author may write."""
    deep = "x"
    for _ in range(levels):
        deep = {"a": deep}
    spec = {"affinity": {"nodeAffinity": deep}, "nodeSelector": deep}
    return heddle_job(name, worker={"template": {"spec": spec}})


def clean(plane):
    """Delete all that was stored."""
    now = ("--all", "--wait=false", "--grace-period=0", "--force")
    for kind in ("heddlejobs", "pods", "configmaps", "nodes"):
        plane.kubectl("delete", kind, *now)


@pytest.fixture
def deep_recursion():
    """This process, too, reads the objects that it stores."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEPEST)
    yield
    sys.setrecursionlimit(limit)


def test_a_job_of_thousands_of_levels_stops_nobody(control_plane, deep_recursion):
    plane, levels = control_plane, 6_000
    log = plane.folder / "deep.log"
    with pytest.raises(ApiRefused):
        asyncio.run(create(plane, JOBS, deep_job("deepest", 10_100)))
    asyncio.run(create(plane, JOBS, deep_job("early", levels)))
    operator = start_operator(plane, log)
    try:
        answered_s(plane, "first")
        asyncio.run(create(plane, JOBS, deep_job("late", levels)))
        assert answered_s(plane, "second") <= 10.0
        assert operator.alive()
    finally:
        operator.kill()
        clean(plane)
    assert "Traceback" not in log.read_text(), log.read_text()[-4000:]


def test_a_thousand_odd_objects_cost_no_traceback_and_no_other_job_its_time(control_plane):
    plane = control_plane
    log = plane.folder / "strangers.log"
    operator = start_operator(plane, log)
    try:
        steady = asyncio.run(create(plane, JOBS, a_job("steady")))
        answered_s(plane, "warm")
        found = asyncio.run(store(plane, Strangers(27, steady["metadata"]["uid"])))
        times = [answered_s(plane, f"after-{number}") for number in range(5)]
        assert operator.alive()
    finally:
        operator.kill()
        clean(plane)
    said = log.read_text()
    assert "Traceback" not in said, said[-4000:]
    assert min(found.values()) > STORED / 10, found
    assert sorted(times)[2] <= 2.0, times
