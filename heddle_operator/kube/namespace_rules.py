"""Limits of a namespace: its quotas, and whether the API server would take its pods.

Quotas come by a watch; one that may not be watched is learnt from the refusal of a pod.
Invariant: an API server that does not answer changes nothing of what is known.
Source: Kubernetes' ResourceQuota; `dryRun=All` runs all of admission and stores nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from heddle_operator.inventory.quotas import headroom_of, is_quota_refusal, quota_in
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import ApiRefused, KubeApi
from heddle_operator.kube.paths import object_path
from heddle_operator.ports.lone_request import LoneRequest
from heddle_operator.ports.trigger import Trigger
from heddle_operator.resources.metadata import taken_off, taken_off_words
from heddle_operator.state.snapshot import Headroom
from planner.pauses import doubled_s

LOG = logging.getLogger(__name__)
TAUGHT_S = 60.0  # what a refusal said of a quota is believed for so long
TRY_AGAIN_S = (5.0, 60.0)  # first and longest pause after the API server took no pod


class NamespaceRules:
    """Quotas of one namespace, and the word of the API server on a pod of the job.

    Args:
        api: of the cluster.
        cache: what is known of it.
        namespace: of the job.
        trigger: set when an answer comes for which nobody waited.
    """

    def __init__(self, api: KubeApi, cache: ObjectCache, namespace: str, trigger: Trigger) -> None:
        self._api = api
        self._cache = cache
        self._namespace = namespace
        self._path = object_path("/api/v1/namespaces", namespace)
        self._trigger = trigger
        self._asking = LoneRequest()
        self._taught: Mapping[str, Any] | None = None
        self._taught_s = float("-inf")
        self._try_again_s: float | None = float("-inf")  # None: a pod was taken
        self._refused = 0
        self._problem = ""
        self.priority = 0  # of the job's pods, as admission says

    def headroom(
        self, pod_spec: Mapping[str, Any], now: float, per_gpu: Mapping[str, str] | None = None
    ) -> Headroom:
        """Rest of the quotas for further pods."""
        quotas: tuple[Mapping[str, Any], ...] = self._cache.quotas(self._namespace)
        if self._taught is not None and now < self._taught_s + TAUGHT_S:
            quotas = (*quotas, self._taught)
        return headroom_of(quotas, pod_spec, per_gpu or {})

    async def learn(self, message: str, now: float) -> None:
        """A pod was refused in these words: read the quotas before the watch tells of them.

        Where they may not be read, the words are believed.
        """
        taught = quota_in(message)
        if taught is None:
            return
        try:
            listed = await self._api.get(f"{self._path}/resourcequotas")
        except ApiRefused:
            self._taught, self._taught_s = taught, now
            return
        self._taught = None
        for quota in listed.get("items") or ():
            self._cache.put_quota(quota)

    async def template_problem(
        self, pods: Callable[[], Iterable[Mapping[str, Any]]], now: float, waits: bool = True
    ) -> str:
        """Why the API server would take none of some pods, in its words; "" if it would.

        It is asked until it once would.  A quota is no matter of the template; while one refuses
        the pod, its priority is not known, and it is asked seldom.

        Args:
            pods: makes their bodies, called only when the API server is asked.
            now: by the loop's clock.
            waits: for the answer; else the trigger tells of it.
        """
        if self._asking.is_running or self._try_again_s is None or now < self._try_again_s:
            return self._problem
        if waits:
            await self._try(pods, now)
        else:
            self._asking.start(self._try_beside(pods, now), "dry run")
        return self._problem

    async def close(self) -> None:
        """Ask for nothing more."""
        await self._asking.close()

    async def _try_beside(
        self, pods: Callable[[], Iterable[Mapping[str, Any]]], now: float
    ) -> None:
        before = self._problem, self.priority
        await self._try(pods, now)
        if before != (self._problem, self.priority):
            self._trigger.set()

    async def _try(self, pods: Callable[[], Iterable[Mapping[str, Any]]], now: float) -> None:
        """Make pods without storing one; the pause counts from the answer."""
        began_s = time.monotonic()
        pause_s = await self._dry_run(pods)
        ended_s = now + time.monotonic() - began_s
        self._try_again_s = None if pause_s is None else ended_s + pause_s

    async def _dry_run(self, pods: Callable[[], Iterable[Mapping[str, Any]]]) -> float | None:
        """Seconds until the next one; None: a pod was taken."""
        refusals = []
        for pod in pods():
            try:
                made = await self._api.call(
                    "POST", f"{self._path}/pods", dict(pod), {"dryRun": "All"}
                )
            except ApiRefused as error:
                if error.passes:
                    return TRY_AGAIN_S[0]
                if is_quota_refusal(str(error)):
                    self._problem = ""
                    return TRY_AGAIN_S[1]
                if error.status != 409:
                    refusals.append(str(error))
                    continue
            else:
                what = taken_off(pod, made)
                if what:
                    refusals.append(taken_off_words(pod["metadata"]["name"], what))
                    continue
                self.priority = int((made.get("spec") or {}).get("priority") or 0)
            self._problem = ""
            return None
        self._refused += 1
        self._problem = refusals[0]
        return doubled_s(TRY_AGAIN_S[0], self._refused, TRY_AGAIN_S[1])
