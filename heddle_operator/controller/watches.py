"""Handlers for Kopf: they pass HeddleJobs to the controller, and decide nothing.

`on.event` only: daemons, timers, deletion and change handlers would put finalizers or annotations
on jobs, and with the operator down nothing could be deleted any more.  Kopf knows no selectors of
the server and tells nothing of what was deleted while it did not watch; so nodes, pods and epoch
records come by reflectors, and so does which jobs are gone.
Source: Kopf's documentation of event handlers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import kopf

from heddle_operator.controller.controller import Controller
from heddle_operator.kube.client import KubeApi, is_in_cluster
from heddle_operator.kube.reflector import Reflector

BACKOFF_S = (0.1, 0.5, 1, 2, 5)  # then 5 s for ever: an operator outlives its API server


class Handlers:
    """The handlers of one operator.

    Args:
        api: whose server Kopf is to use.
        controller: takes HeddleJobs.
        reflectors: fill the cache; no job is followed before those of the cluster and of its own
            namespace have.
        is_namespaced: whether only some namespaces are looked at.
    """

    def __init__(
        self,
        api: KubeApi,
        controller: Controller,
        reflectors: Sequence[Reflector],
        is_namespaced: bool,
    ) -> None:
        self._api = api
        self._controller = controller
        self._reflectors = reflectors
        self._is_namespaced = is_namespaced

    def register(self, registry: kopf.OperatorRegistry) -> None:
        """Bind them to a registry of Kopf."""
        kopf.on.login(registry=registry, id="login")(self.login)
        kopf.on.startup(registry=registry, id="startup")(self.startup)
        kopf.on.event("heddle.dev", "v1alpha1", "heddlejobs", registry=registry, id="job")(self.job)

    async def login(self, **kwargs: Any) -> kopf.ConnectionInfo | None:
        """As the service account of the pod, or as kubectl would."""
        if not is_in_cluster():
            return kopf.login_with_kubeconfig(**kwargs)
        info = kopf.login_with_service_account(**kwargs)
        # By address as every other request, so that an operator works without the cluster's DNS.
        return replace(info, server=self._api.server) if info is not None else None

    async def startup(self, settings: kopf.OperatorSettings, **_: Any) -> None:
        """Wait for the cache before any job is followed."""
        configure(settings, self._is_namespaced)
        for reflector in self._reflectors:
            await reflector.is_answered.wait()
        self._controller.start(self._listed)

    async def _listed(self, namespace: str) -> None:
        """Wait until all collections of a namespace were listed."""
        for reflector in self._reflectors:
            if reflector.namespace == namespace:
                await reflector.is_synced.wait()

    async def job(self, event: kopf.RawEvent, **_: Any) -> None:
        """A HeddleJob."""
        body = event["object"]
        if event["type"] == "DELETED":
            self._controller.drop(body)
        else:
            self._controller.put(body)


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
