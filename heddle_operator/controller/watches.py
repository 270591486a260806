"""What Kopf calls: every event goes into the cache or to the jobs, and nothing is decided here.

`on.event` only: daemons, timers, deletion and change handlers would put finalizers or annotations
on jobs and nodes, and with the operator down nothing could be deleted any more.
Source: Kopf's documentation of event handlers; design, section 5.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from dataclasses import replace
from typing import Any

import kopf

from heddle_operator.apis.labels import JOB_LABEL
from heddle_operator.controller.controller import Controller
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import ApiRefused, KubeApi, is_in_cluster
from heddle_operator.kube.relist import relist

LOG = logging.getLogger(__name__)
RELIST_S = 60.0  # lists find what watches missed
BACKOFF_S = (0.1, 0.5, 1, 2, 5)  # then 5 s for ever: an operator outlives its API server


class Handlers:
    """The handlers of one operator.

    Args:
        api: for whole lists.
        cache: takes nodes, pods and epoch records.
        controller: takes HeddleJobs.
        namespaces: to look at; none given: all.
    """

    def __init__(
        self, api: KubeApi, cache: ObjectCache, controller: Controller, namespaces: tuple[str, ...]
    ) -> None:
        self._api = api
        self._cache = cache
        self._controller = controller
        self._namespaces = namespaces
        self._relist: asyncio.Task[None] | None = None

    def register(self, registry: kopf.OperatorRegistry) -> None:
        """Bind them to a registry of Kopf."""
        epochs = {JOB_LABEL: kopf.PRESENT}
        kopf.on.login(registry=registry, id="login")(self.login)
        kopf.on.startup(registry=registry, id="startup")(self.startup)
        kopf.on.cleanup(registry=registry, id="cleanup")(self.cleanup)
        kopf.on.event("heddle.dev", "v1alpha1", "heddlejobs", registry=registry, id="job")(self.job)
        kopf.on.event("", "v1", "nodes", registry=registry, id="node")(self.node)
        kopf.on.event("", "v1", "pods", registry=registry, id="pod")(self.pod)
        kopf.on.event("", "v1", "configmaps", labels=epochs, registry=registry, id="epoch")(
            self.epoch
        )

    async def login(self, **kwargs: Any) -> kopf.ConnectionInfo | None:
        """As the service account of the pod, or as kubectl would."""
        if not is_in_cluster():
            return kopf.login_with_kubeconfig(**kwargs)
        info = kopf.login_with_service_account(**kwargs)
        # By address as every other request, so that an operator works without the cluster's DNS.
        return replace(info, server=self._api.server) if info is not None else None

    async def startup(self, settings: kopf.OperatorSettings, **_: Any) -> None:
        """Fill the cache before any job is followed."""
        configure(settings, bool(self._namespaces))
        while True:
            try:
                await relist(self._api, self._cache, self._namespaces)
            except ApiRefused as error:
                LOG.warning("the cluster cannot be listed yet: %s", error)
                await asyncio.sleep(1.0)
            else:
                break
        self._controller.start()
        self._relist = asyncio.create_task(self._relist_regularly(), name="relist")

    async def cleanup(self, **_: Any) -> None:
        """End what `startup` began; the jobs train on."""
        if self._relist is not None:
            self._relist.cancel()
            await asyncio.gather(self._relist, return_exceptions=True)
        await self._controller.close()

    async def job(self, event: kopf.RawEvent, **_: Any) -> None:
        """A HeddleJob."""
        body = event["object"]
        if event["type"] == "DELETED":
            self._controller.drop(body)
        else:
            self._controller.put(body)

    async def node(self, event: kopf.RawEvent, **_: Any) -> None:
        """A Node."""
        if event["type"] == "DELETED":
            self._cache.drop_node(event["object"]["metadata"]["name"])
        else:
            self._cache.put_node(event["object"])

    async def pod(self, event: kopf.RawEvent, **_: Any) -> None:
        """A Pod of anybody: others hold GPUs too."""
        self._owned("Pod", event)

    async def epoch(self, event: kopf.RawEvent, **_: Any) -> None:
        """A ConfigMap with an epoch's record."""
        self._owned("ConfigMap", event)

    def _owned(self, kind: str, event: kopf.RawEvent) -> None:
        body = event["object"]
        if event["type"] == "DELETED":
            self._cache.drop(body["metadata"]["uid"])
        else:
            self._cache.put(kind, body)

    async def _relist_regularly(self) -> None:
        while True:
            await asyncio.sleep(RELIST_S)
            with contextlib.suppress(ApiRefused):
                await relist(self._api, self._cache, self._namespaces)


def configure(settings: kopf.OperatorSettings, is_namespaced: bool) -> None:
    """Kopf as it suits an operator that only listens."""
    settings.posting.enabled = False
    settings.persistence.finalizer = "heddle.dev/never-set"
    settings.networking.error_backoffs = _Backoffs()
    settings.scanning.disabled = is_namespaced
    settings.watching.reconnect_backoff = 0.1


class _Backoffs:
    """Pauses without an end; Kopf iterates anew for each request."""

    def __iter__(self) -> itertools.chain[float]:
        return itertools.chain(BACKOFF_S, itertools.repeat(BACKOFF_S[-1]))
