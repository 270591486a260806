"""Handlers for Kopf: they pass HeddleJobs to the controller, and decide nothing.

`on.event` only: daemons, timers, deletion and change handlers would put finalizers or annotations
on jobs, and with the operator down nothing could be deleted any more.  Kopf knows no selectors of
the server and tells nothing of what was deleted while it did not watch; so nodes, pods and epoch
records come by reflectors, and so does which jobs are gone.
Source: Kopf's documentation of event handlers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import kopf

from heddle_operator.controller.controller import Controller
from heddle_operator.kube.client import KubeApi, is_in_cluster
from heddle_operator.kube.reflector import LIVES_S, PAUSES_S, Reflector
from planner.pauses import doubled_s

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
        self._pauses = WatchPauses()
        self._session: aiohttp.ClientSession | None = None

    def register(self, registry: kopf.OperatorRegistry) -> None:
        """Bind them to a registry of Kopf."""
        kopf.on.login(registry=registry, id="login")(self.login)
        kopf.on.startup(registry=registry, id="startup")(self.startup)
        kopf.on.event("heddle.dev", "v1alpha1", "heddlejobs", registry=registry, id="job")(self.job)

    async def login(self, **kwargs: Any) -> Login | None:
        """As the service account of the pod, or as kubectl would."""
        if not is_in_cluster():
            info = kopf.login_with_kubeconfig(**kwargs)
        else:
            info = kopf.login_with_service_account(**kwargs)
        if info is None:
            return None
        if is_in_cluster():
            # By address as every other request, so that an operator works without the cluster's DNS
            info = replace(info, server=self._api.server)
        await self.close()
        self._session = _session(info, self._pauses)
        return Login.of(info, self._session)

    async def close(self) -> None:
        """Close the session of the newest login; Kopf closes those that it has accepted."""
        if self._session is not None:
            await self._session.close()

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


@dataclass(frozen=True, kw_only=True)
class Login(kopf.AiohttpSession):
    """A session of Kopf's with its credentials.

    Invariant: as of a login without a session, Kopf gives up credentials that the server refused.
    """

    aiohttp_session: aiohttp.ClientSession = field(compare=False)
    credentials: kopf.ConnectionInfo = field(repr=False)

    @classmethod
    def of(cls, info: kopf.ConnectionInfo, session: aiohttp.ClientSession) -> Login:
        """The login of these credentials in a session that has them."""
        return cls(
            server=info.server,
            priority=info.priority,
            default_namespace=info.default_namespace,
            expiration=info.expiration,
            aiohttp_session=session,
            credentials=info,
        )


def _session(info: kopf.ConnectionInfo, pauses: WatchPauses) -> aiohttp.ClientSession:
    """The session that Kopf would make, with pauses between its watches."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        trust_env=info.trust_env,
        middlewares=(pauses,),
    )


class WatchPauses:
    """Lets a watch wait where the one before it of the same collection did not live.

    Kopf pauses after errors and before lists alone: watches that a proxy ends in order would
    follow each other without a pause.  The pauses are those of our own reflectors.
    Source: aiohttp's client middlewares; `heddle_operator.kube.reflector`.
    """

    def __init__(self) -> None:
        self._began_s: dict[str, float] = {}  # of the newest watch by path
        self._tries: dict[str, int] = {}

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request when its time has come."""
        if "watch" in request.url.query:
            path = request.url.path
            now = asyncio.get_running_loop().time
            await asyncio.sleep(self._pause_s(path, now()))
            self._began_s[path] = now()
        return await handler(request)

    def _pause_s(self, path: str, now: float) -> float:
        if now - self._began_s.get(path, float("-inf")) >= LIVES_S:
            self._tries[path] = 0
            return 0.0
        self._tries[path] += 1
        return doubled_s(PAUSES_S[0], self._tries[path], PAUSES_S[1])


class _Backoffs:
    """Pauses without an end; Kopf iterates anew for each request."""

    def __iter__(self) -> itertools.chain[float]:
        return itertools.chain(BACKOFF_S, itertools.repeat(BACKOFF_S[-1]))
