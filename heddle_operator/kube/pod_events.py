"""The kubelet's words on a pod that waits without a word in its status: in Events only.

A sandbox that the network plugin cannot set up, and a volume that is not there, are told nowhere
else.
Invariant: no look at a job waits for Events; they are listed beside it, once for all its pods.
Source: the reasons that the kubelet gives its Events (pkg/kubelet/events).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping
from typing import Any

from heddle_operator.apis.times import wall_s
from heddle_operator.kube.client import ApiRefused, Body, KubeApi
from heddle_operator.kube.paths import object_path
from heddle_operator.ports.lone_request import LoneRequest
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.reasons import StartCause
from planner.pauses import doubled_s

ASK_S = 3.0  # a pod waits for so long before its Events are asked for, and between two times
LONGEST_PAUSE_S = 60.0  # after lists that failed
ANSWER_S = 5.0  # for all pages of a list
PAGE = "500"
SELECTOR = "involvedObject.kind=Pod,type=Warning"
FRESH_S = 60.0  # an older Event is of a trouble that may be over; the kubelet repeats itself
_CAUSES: Mapping[str, StartCause] = {
    "FailedCreatePodSandBox": "sandbox",
    "NetworkNotReady": "sandbox",
    "FailedMount": "volume",
    "FailedAttachVolume": "volume",
    "FailedMapVolume": "volume",
}
Obstacle = tuple[StartCause, str]


class PodEvents:
    """The newest words on the pods of a job that wait.

    Args:
        api: of the cluster.
        namespace: of the job.
        trigger: set when other words are known.
    """

    def __init__(self, api: KubeApi, namespace: str, trigger: Trigger) -> None:
        self._api = api
        self._path = object_path("/api/v1/namespaces", namespace, "events")
        self._trigger = trigger
        self._words: dict[str, Obstacle] = {}
        self._asking = LoneRequest()
        self._ask_again_s = float("-inf")
        self._failures = 0  # in a row

    def known(self, waiting: Collection[Body], now_wall_s: float) -> Mapping[str, Obstacle]:
        """Obstacles of pods that wait, by uid, as far as Events have told; it asks for newer ones.

        Args:
            waiting: the pods.
            now_wall_s: by the server's clock.
        """
        born = {pod["metadata"]["uid"]: pod["metadata"]["creationTimestamp"] for pod in waiting}
        self._words = {uid: words for uid, words in self._words.items() if uid in born}
        old = frozenset(uid for uid, text in born.items() if now_wall_s - wall_s(text) >= ASK_S)
        if old and not self._asking.is_running and time.monotonic() >= self._ask_again_s:
            self._ask_again_s = time.monotonic() + LONGEST_PAUSE_S  # or what the answer says
            self._asking.start(self._ask(old, now_wall_s), "events of pods")
        return self._words

    async def close(self) -> None:
        """Ask for nothing more."""
        await self._asking.close()

    async def _ask(self, uids: frozenset[str], now_wall_s: float) -> None:
        """List the Events, and tell if there are other words on these pods.

        A list that fails halfway counts as far as it was read.
        """
        found: dict[str, list[Body]] = {}
        self._failures += 1
        with contextlib.suppress(ApiRefused, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._list(uids, found)
                self._failures = 0
        pause_s = doubled_s(ASK_S, max(1, self._failures), LONGEST_PAUSE_S)
        self._ask_again_s = time.monotonic() + pause_s
        told = ((uid, newest_event(events, now_wall_s)) for uid, events in found.items())
        words = {uid: obstacle for uid, obstacle in told if obstacle is not None}
        if words != self._words:
            self._words = words
            self._trigger.set()

    async def _list(self, uids: frozenset[str], found: dict[str, list[Body]]) -> None:
        query = {"fieldSelector": SELECTOR, "limit": PAGE}
        while True:
            page = await self._api.get(self._path, **query)
            for event in page.get("items") or ():
                uid = str((event.get("involvedObject") or {}).get("uid"))
                if uid in uids and event.get("reason") in _CAUSES:
                    found.setdefault(uid, []).append(event)
            query["continue"] = str(page["metadata"].get("continue") or "")
            if not query["continue"]:
                return


def waits_silently(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is bound to its node, and not even its sandbox stands."""
    status = pod.get("status") or {}
    if status.get("phase") != "Pending" or not (pod.get("spec") or {}).get("nodeName"):
        return False
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
    return conditions.get("PodReadyToStartContainers") != "True"


def newest_event(events: Any, now_wall_s: float) -> Obstacle | None:
    """The newest Event of a known reason, if it is fresh: its kind of cause and its words."""
    rows = [(_time_s(event), event) for event in events if event.get("reason") in _CAUSES]
    fresh = [row for row in rows if now_wall_s - row[0] < FRESH_S]
    if not fresh:
        return None
    _, event = max(fresh, key=lambda row: row[0])
    lines = str(event.get("message") or "").strip().splitlines()
    reason = event["reason"]
    return _CAUSES[reason], f"{reason}: {lines[-1]}" if lines else reason


def _time_s(event: Mapping[str, Any]) -> float:
    series = event.get("series") or {}
    text = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return wall_s(text) if text else 0.0
