"""The kubelet's words on a pod that waits without a word in its status: in Events only.

A sandbox that the network plugin cannot set up, and a volume that is not there, are told nowhere
else.
Source: the reasons that the kubelet gives its Events (pkg/kubelet/events).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heddle_operator.inventory.nodes import wall_s
from heddle_operator.kube.client import ApiRefused, KubeApi
from heddle_operator.kube.paths import joined
from heddle_operator.state.reasons import StartCause

ASK_S = 3.0  # a pod waits for so long before its Events are asked for, and between two times
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
    """The newest words on each pod, by uid."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._path = joined("/api/v1/namespaces", namespace, "events")
        self._asked: dict[str, tuple[float, Obstacle | None]] = {}

    async def of(self, pod: Mapping[str, Any], now_wall_s: float) -> Obstacle | None:
        """Obstacle of a pending pod, by its Events; None if they say nothing."""
        uid = pod["metadata"]["uid"]
        first_s = wall_s(pod["metadata"]["creationTimestamp"])
        asked_s, words = self._asked.get(uid, (first_s, None))
        if now_wall_s - asked_s < ASK_S:
            return words
        selector = f"involvedObject.uid={uid},type=Warning"
        try:
            listed = await self._api.get(self._path, fieldSelector=selector, limit="50")
        except ApiRefused:
            words = None
        else:
            words = newest_event(listed.get("items") or (), now_wall_s)
        self._asked[uid] = (now_wall_s, words)
        return words

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forget pods that are gone, or that wait no more."""
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in uids}


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
