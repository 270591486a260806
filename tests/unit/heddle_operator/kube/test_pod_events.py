"""A pod that waits without a word is explained by its newest fresh Event."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.kube.client import connect
from heddle_operator.kube.pod_events import PodEvents, newest_event, waits_silently
from tests.fakes.api_server import an_api_server

BORN_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z
POD = {
    "metadata": {"uid": "u", "name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Pending"},
}


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


def test_events_are_asked_for_after_a_while_and_seldom(tmp_path):
    async def main():
        async with an_api_server() as server, await connect(server.kubeconfig(tmp_path)) as api:
            await server.put("/api/v1/namespaces/ns/events/e", event("FailedCreatePodSandBox", 1))
            events = PodEvents(api, "ns")
            assert await events.of(POD, BORN_S + 2.9) is None
            assert server.requests == []
            said = ("sandbox", "FailedCreatePodSandBox: no such plugin")
            assert await events.of(POD, BORN_S + 3) == said
            assert await events.of(POD, BORN_S + 5) == said
            assert len(server.requests) == 1
            events.keep_only(frozenset())
            assert await events.of(POD, BORN_S + 2) is None

    asyncio.run(asyncio.wait_for(main(), 20))
