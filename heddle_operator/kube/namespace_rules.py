"""What a namespace lets a job have: its quotas, and whether the API server would take its pods.

Asked beside the watches, seldom and at most so often; a quota that may not be read is learnt from
the refusal of a pod.
Invariant: an API server that does not answer changes nothing of what is known.
Source: Kubernetes' ResourceQuota; `dryRun=All` runs all of admission and stores nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from heddle_operator.inventory.quotas import headroom_of, is_quota_refusal, quota_in
from heddle_operator.kube.client import ApiRefused, KubeApi
from heddle_operator.kube.paths import joined
from heddle_operator.state.snapshot import Headroom

LOG = logging.getLogger(__name__)
QUOTAS_S = 10.0  # quotas are read again after so long where there are any
NO_QUOTAS_S = 60.0  # and where there are none, or where they may not be read
TRY_AGAIN_S = (5.0, 60.0)  # first and longest pause after the API server took no pod


class NamespaceRules:
    """Quotas of one namespace, and the word of the API server on a pod of the job.

    Args:
        api: of the cluster.
        namespace: of the job.
    """

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._path = joined("/api/v1/namespaces", namespace)
        self._quotas: tuple[Mapping[str, Any], ...] = ()
        self._read_again_s = float("-inf")
        self._try_again_s: float | None = float("-inf")  # None: a pod was taken
        self._pause_s = TRY_AGAIN_S[0]
        self._problem = ""
        self.priority = 0  # of the job's pods, as admission says

    async def headroom(self, pod_spec: Mapping[str, Any], now: float) -> Headroom:
        """What quotas leave for further pods."""
        if now >= self._read_again_s:
            try:
                listed = await self._api.get(f"{self._path}/resourcequotas")
            except ApiRefused as error:
                if error.status == 403:
                    self._quotas = ()  # they may not be read; what a refusal taught is old by now
                self._read_again_s = now + NO_QUOTAS_S
                LOG.info("quotas of %s are not read: %s", self._path, error)
            else:
                self._quotas = tuple(listed.get("items") or ())
                self._read_again_s = now + (QUOTAS_S if self._quotas else NO_QUOTAS_S)
        return headroom_of(self._quotas, pod_spec)

    async def learn(self, message: str, now: float) -> None:
        """A pod was refused in these words: read the quotas anew, or believe the words."""
        taught = quota_in(message)
        if taught is None:
            return
        try:
            listed = await self._api.get(f"{self._path}/resourcequotas")
            self._quotas = tuple(listed.get("items") or ())
            self._read_again_s = now + QUOTAS_S
        except ApiRefused:
            self._quotas = (taught,)
            self._read_again_s = now + NO_QUOTAS_S

    async def template_problem(self, pod: Callable[[], Mapping[str, Any]], now: float) -> str:
        """Why the API server would not take a pod, in its words; "" if it would.

        It is asked until it once would.  A quota is no matter of the template.

        Args:
            pod: makes its body, called only when the API server is asked.
            now: by the loop's clock.
        """
        if self._try_again_s is None or now < self._try_again_s:
            return self._problem
        try:
            made = await self._api.call(
                "POST", f"{self._path}/pods", dict(pod()), {"dryRun": "All"}
            )
            self.priority = int((made.get("spec") or {}).get("priority") or 0)
        except ApiRefused as error:
            if error.status == 0 or error.status >= 500 or error.status == 429:
                self._try_again_s = now + TRY_AGAIN_S[0]
                return self._problem
            if error.status != 409 and not is_quota_refusal(str(error)):
                self._problem, self._try_again_s = str(error), now + self._pause_s
                self._pause_s = min(2 * self._pause_s, TRY_AGAIN_S[1])
                return self._problem
        self._problem, self._try_again_s = "", None
        return ""
