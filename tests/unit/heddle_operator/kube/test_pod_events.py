"""A pod that waits without a word is explained by its newest fresh Event."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from heddle_operator.kube import pod_events
from heddle_operator.kube.client import connect
from heddle_operator.kube.pod_events import PodEvents, newest_event, waits_silently
from heddle_operator.ports.trigger import Trigger
from tests.fakes.api_server import an_api_server

BORN_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z
EVENTS = "/api/v1/namespaces/ns/events"
SAID = ("sandbox", "FailedCreatePodSandBox: no such plugin")


def a_pod(number):
    return {"metadata": {"uid": f"u{number}", "creationTimestamp": "2026-01-01T00:00:00Z"}}


def event(reason, second, message="first\nno such plugin", **more):
    return {"reason": reason, "message": message,
            "lastTimestamp": f"2026-01-01T00:00:{second:02d}Z", **more}  # fmt: skip


def test_the_newest_fresh_event_of_a_known_reason_speaks():
    rows = [event("FailedMount", 1), event("FailedCreatePodSandBox", 5), event("Unknown", 9)]
    words = ("sandbox", "FailedCreatePodSandBox: no such plugin")
    assert newest_event(rows, BORN_S + 10) == words
    assert newest_event(rows, BORN_S + 65) is None
    assert newest_event([], BORN_S) is None
    series = {"lastObservedTime": "2026-01-01T00:00:59Z"}
    assert newest_event([event("FailedMount", 1, series=series)], BORN_S + 65) == (
        *("volume",),
        "FailedMount: no such plugin",
    )


@pytest.mark.parametrize(
    ("spec", "status", "waits"),
    [
        ({"nodeName": "n1"}, {"phase": "Pending"}, True),
        ({}, {"phase": "Pending"}, False),
        ({"nodeName": "n1"}, {"phase": "Running"}, False),
        (
            {"nodeName": "n1"},
            {"phase": "Pending",
             "conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]},
            False,
        ),
    ],
)  # fmt: skip
def test_a_pod_waits_silently_while_it_is_bound_and_has_no_sandbox(spec, status, waits):
    assert waits_silently({"spec": spec, "status": status}) is waits


@pytest.fixture
def run(tmp_path):
    """Runs a test with the words on a job's pods, a server and a trigger."""

    def run(test):
        async def main():
            async with an_api_server() as server, await connect(server.kubeconfig(tmp_path)) as api:
                trigger = Trigger()
                events = PodEvents(api, "ns", trigger)
                try:
                    await asyncio.wait_for(test(events, server, trigger), 20)
                finally:
                    await events.close()

        asyncio.run(main())

    return run


async def tell(server, number, reason="FailedCreatePodSandBox"):
    about = {"involvedObject": {"kind": "Pod", "uid": f"u{number}"}}
    await server.put(f"{EVENTS}/e{number}", event(reason, 1, **about))


def test_events_are_asked_for_after_a_while_and_seldom(run):
    async def test(events, server, trigger):
        await tell(server, 0)
        assert events.known([a_pod(0)], BORN_S + 2.9) == {}
        assert events.known([a_pod(0)], BORN_S + 3) == {}
        assert await trigger.wait(5)
        assert events.known([a_pod(0)], BORN_S + 3) == {"u0": SAID}
        assert not await trigger.wait(0.1)
        assert server.requests == [("GET", EVENTS)]
        assert events.known([], BORN_S + 4) == {}

    run(test)


def test_one_list_tells_of_all_pods_of_the_job(run, monkeypatch):
    monkeypatch.setattr(pod_events, "PAGE", "2")

    async def test(events, server, trigger):
        for number in range(5):
            await tell(server, number)
        await tell(server, 5, "Unknown")
        pods = [a_pod(number) for number in range(3, 7)]
        events.known(pods, BORN_S + 3)
        assert await trigger.wait(5)
        assert events.known(pods, BORN_S + 3) == {"u3": SAID, "u4": SAID}
        assert server.requests == [("GET", EVENTS)] * 3

    run(test)


def test_nobody_waits_for_events_that_hang_and_what_was_read_counts(run, monkeypatch):
    monkeypatch.setattr(pod_events, "PAGE", "1")
    monkeypatch.setattr(pod_events, "ANSWER_S", 0.3)

    async def test(events, server, trigger):
        get = server._get

        async def slow(request, path):
            if "continue" in request.query:
                await asyncio.sleep(60)
            return await get(request, path)

        monkeypatch.setattr(server, "_get", slow)
        await tell(server, 0)
        await tell(server, 1)
        pods = [a_pod(0), a_pod(1)]
        began_s = time.monotonic()
        assert events.known(pods, BORN_S + 3) == {}
        assert time.monotonic() - began_s < 0.3
        assert await trigger.wait(5)
        assert events.known(pods, BORN_S + 3) == {"u0": SAID}

    run(test)


def test_after_a_failure_the_pause_doubles(run, monkeypatch):
    monkeypatch.setattr(pod_events, "ASK_S", 0.05)

    async def test(events, server, trigger):
        server.refuses[f"GET {EVENTS}"] = (403, "forbidden")
        times = []
        while len(times) < 4:
            was_asking = events._asking.is_running
            events.known([a_pod(0)], BORN_S + 3)
            if events._asking.is_running and not was_asking:
                times.append(time.monotonic())
            await asyncio.sleep(0.01)
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert pauses[1] > 0.1
        assert pauses[2] > 0.2

    run(test)
