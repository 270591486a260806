"""Requests to the API server: plain objects in and out, its refusals as one error.

The only file that knows the `kubernetes` client.  Typed models are left out on purpose: bodies are
data that pure files make and read.
Source: the Kubernetes API conventions (verbs, status codes, resourceVersion).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, ApiException, Configuration
from kubernetes.aio.client.rest import RESTClientObject

from heddle_operator.apis.errors import OperatorError
from heddle_operator.kube.connections import Connector
from heddle_operator.kube.paths import is_plain
from heddle_operator.kube.server_clock import ServerClock
from planner.wording import reason_of

Body = dict[str, Any]
REQUEST_S = 15.0
MERGE_PATCH = "application/merge-patch+json"
CONNECTIONS = 32
AGAIN_S = 30.0  # longest pause that a server may ask for
FIELD_MANAGER = "heddle-operator"  # of all that is written, in managedFields
NAMESPACE_ENDS = "NamespaceTerminating"
_FINAL = (400, 403, 413, 422)  # a policy, a quota, a rule or a size: the same will be said again
_TOO_LARGE = "etcdserver: request is too large"  # with status 500; of etcd's rpctypes
_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class ApiRefused(OperatorError):
    """The API server refused a request.

    Attributes:
        status: of HTTP; 0 if there was no answer.
        reason: of the server's Status object, such as NotFound; empty if it sent none.
        resource: that was refused, such as jobs, as the details of that object say; may be empty.
        name: of the object that was refused, likewise.
        causes: the server's words for what it refuses, such as NamespaceTerminating.
        again_s: seconds for which it asks not to be asked again, at most `AGAIN_S`; else 0.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str = "",
        resource: str = "",
        name: str = "",
        causes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(message)
        self.status, self.reason, self.resource, self.name = status, reason, resource, name
        self.causes, self.again_s = causes, 0.0

    @classmethod
    def of(cls, status: int, data: bytes, otherwise: str) -> Self:
        """What an answer says.

        Args:
            status: of HTTP.
            data: a Status object, or words of a proxy.
            otherwise: the message, where the data have none.
        """
        try:
            body = json.loads(data)
            details = body.get("details") or {}
            return cls(
                status,
                str(body.get("message") or otherwise),
                reason=str(body.get("reason") or ""),
                resource=str(details.get("kind") or ""),
                name=str(details.get("name") or ""),
                causes=frozenset(str(c.get("reason")) for c in details.get("causes") or ()),
            )
        except (ValueError, TypeError, AttributeError):
            return cls(status, data.decode(errors="replace").strip() or otherwise)

    @property
    def passes(self) -> bool:
        """Whether it says nothing of the object: another try may do."""
        return not self.is_final and (self.status in (0, 429) or self.status >= 500)

    @property
    def is_final(self) -> bool:
        """Whether the same request will be refused until somebody changes a rule."""
        return self.status in _FINAL or (self.status == 500 and _TOO_LARGE in str(self))


class _RestClient(RESTClientObject):
    """The client's transport over connections that can be broken off."""

    def _create_connector(self) -> Connector:
        return Connector(self.maxsize, self.ssl_context)


class KubeApi:
    """A connection to one API server; use it as a context.

    Attributes:
        namespace: where to look unless somebody says otherwise, as kubectl would.
        clock: the server's.
    """

    def __init__(self, configuration: Configuration, namespace: str = "default") -> None:
        self.namespace = namespace
        self.clock = ServerClock()
        self._client = ApiClient(configuration)
        # The API server takes the field manager of each write from it: what is before the slash.
        self._client.user_agent = f"{FIELD_MANAGER}/{version('heddle')}"
        self._client.rest_client = _RestClient(configuration)
        self._left_s: Callable[[], float] = lambda: math.inf
        self._on_namespace_end: Callable[[], None] = lambda: None

    def fenced(self, left_s: Callable[[], float]) -> Self:
        """The same connection for requests that end before their sender's time is up.

        Args:
            left_s: seconds that are left to the sender; nothing is sent without any.
        """
        found = copy.copy(self)
        found._left_s = left_s
        return found

    def telling(self, on_namespace_end: Callable[[], None]) -> Self:
        """The same connection for one namespace.

        Args:
            on_namespace_end: called when the server refuses to create anything there any more,
                because the namespace is being deleted.
        """
        found = copy.copy(self)
        found._on_namespace_end = on_namespace_end
        return found

    async def __aenter__(self) -> KubeApi:
        """Open it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self._client.close()

    @property
    def server(self) -> str:
        """Its address."""
        return str(self._client.configuration.host)

    async def get(self, path: str, **query: str) -> Body:
        """Read an object or a list.

        Raises:
            ApiRefused: with status 404 if it does not exist.
        """
        return await self.call("GET", path, None, query)

    async def create(self, path: str, body: Body) -> Body:
        """Create an object.

        Raises:
            ApiRefused: with status 409 if it exists, 403 if a quota or a rule forbids it.
        """
        return await self.call("POST", path, body)

    async def replace(self, path: str, body: Body) -> Body:
        """Write a whole object; its `resourceVersion` is a precondition.

        Raises:
            ApiRefused: with status 409 if it was changed meanwhile.
        """
        return await self.call("PUT", path, body)

    async def patch(self, path: str, body: Body) -> Body:
        """Merge into an object (RFC 7386)."""
        return await self.call("PATCH", path, body, content_type=MERGE_PATCH)

    async def delete(self, path: str, uid: str, grace_s: int | None = None) -> None:
        """Delete the object that was seen; one that is gone, or is another one by now, is fine."""
        options: Body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self.call("DELETE", path, options)
        except ApiRefused as error:
            if error.status not in (404, 409):
                raise

    async def text(self, path: str, **query: str) -> str:
        """Read something that is not JSON, for example a log.

        Raises:
            ApiRefused: it cannot be read.
        """
        found = await self._send("GET", path, None, query, "application/json")
        return found.decode(errors="replace")

    async def watch(self, path: str, silent_s: float, **query: str) -> AsyncIterator[Body]:
        """The events of a collection, until the server ends the watch.

        Args:
            path: of the collection.
            silent_s: the connection is given up when nothing came for so long.
            query: selectors, resourceVersion and what else a watch may have.

        Raises:
            ApiRefused: it cannot be watched, or the connection broke; an event of type ERROR is
                passed on.
        """
        rest = b""
        with self._refusals():
            async for piece in self.follow(path, silent_s, **query, watch="true"):
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(None, lines):
                    yield json.loads(line)

    async def follow(self, path: str, silent_s: float, **query: str) -> AsyncIterator[bytes]:
        """Something that grows while it is read, for example a log, until the server ends it.

        Args:
            path: of it.
            silent_s: the connection is given up when nothing came for so long.
            query: what of it is asked for.

        Raises:
            ApiRefused: it cannot be read, or the connection broke.
        """
        limit = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_S, sock_read=silent_s)
        with self._refusals():
            answer = await self._request("GET", path, None, query, "application/json", limit)
            async with answer:
                if answer.status >= 400:
                    raise _refused(answer, await answer.read())
                async for piece in answer.content.iter_any():
                    yield piece

    async def call(
        self,
        method: str,
        path: str,
        body: Body | None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Body:
        """Send a request and read its JSON answer.

        Raises:
            ApiRefused: the answer is an error, or there was none.
        """
        data = await self._send(method, path, body, query or {}, content_type)
        with self._refusals():
            answer: Body = json.loads(data)
            if not isinstance(answer, dict) or "metadata" not in answer:
                raise ValueError("it is no object of Kubernetes")
        return answer

    async def _send(
        self, method: str, path: str, body: Body | None, query: Mapping[str, str], content_type: str
    ) -> bytes:
        limit_s = min(REQUEST_S, self._left_s())
        if limit_s <= 0:
            raise ApiRefused(0, "this operator does not hold its lease any more; nothing is sent")
        sent_s = time.monotonic()
        with self._refusals():
            if self._left_s() < math.inf:  # the server, too, is to be done with it by then
                query = {**query, "timeout": f"{limit_s:.3f}s"}
            async with asyncio.timeout(limit_s):
                unlimited = aiohttp.ClientTimeout(total=None)
                answer = await self._request(method, path, body, query, content_type, unlimited)
                self.clock.heard(answer.headers.get("Date", ""), sent_s, time.monotonic())
                data = await answer.read()
        if answer.status >= 400:
            refused = _refused(answer, data)
            if NAMESPACE_ENDS in refused.causes:
                self._on_namespace_end()
            raise refused
        return data

    async def _request(
        self,
        method: str,
        path: str,
        body: Body | None,
        query: Mapping[str, str],
        content_type: str,
        limit: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        if not is_plain(path):  # the client itself would follow ".." and take "?" for a query
            raise ApiRefused(400, f"{path!r} is no path of an object")
        headers = {"Accept": "application/json, */*", "Content-Type": content_type}
        request = await self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(*request, _request_timeout=limit)
        response: aiohttp.ClientResponse = answer.response
        return response

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Whatever goes wrong with a request, as `ApiRefused`."""
        try:
            yield
        except ApiException as error:
            data = error.body.encode() if isinstance(error.body, str) else (error.body or b"")
            raise ApiRefused.of(int(error.status or 0), data, str(error.reason)) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            words = str(error) or type(error).__name__
            raise ApiRefused(0, f"the API server {self.server} does not answer: {words}") from None
        except (ValueError, RecursionError) as error:
            words = f"the API server {self.server} gave an answer that cannot be read"
            raise ApiRefused(0, f"{words}: {error}") from None


def _refused(answer: aiohttp.ClientResponse, data: bytes) -> ApiRefused:
    refused = ApiRefused.of(answer.status, data, f"HTTP {answer.status}")
    again = answer.headers.get("Retry-After", "")
    refused.again_s = min(AGAIN_S, float(again)) if again.isdecimal() else 0.0
    return refused


# What the client raises at a kubeconfig that is broken: it takes its form for granted.
_BROKEN = (
    *(AttributeError, KeyError, OSError, TypeError, ValueError),
    *(config.ConfigException, yaml.YAMLError),
)


async def connect(kubeconfig: Path | None = None, connections: int = CONNECTIONS) -> KubeApi:
    """A connection as kubectl would make it, or that of the pod that this runs in.

    Args:
        kubeconfig: where it is; by default where kubectl looks.
        connections: open at once, at most; 0 for as many as there are requests.

    Raises:
        OperatorError: there is neither a kubeconfig nor a service account, or it is broken.
    """
    configuration = Configuration()
    configuration.connection_pool_maxsize = connections
    try:
        if is_in_cluster() and kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
            namespace = _IN_CLUSTER.with_name("namespace").read_text(encoding="utf-8").strip()
        else:
            file = _kubeconfig(kubeconfig)
            await config.load_kube_config(config_file=file, client_configuration=configuration)
            _, chosen = config.list_kube_config_contexts(config_file=file)
            namespace = str(chosen["context"].get("namespace") or "default")
        return KubeApi(configuration, namespace)
    except _BROKEN as error:
        reason = " ".join(reason_of(error).split())
        if isinstance(error, TypeError | AttributeError | KeyError):
            reason = "the kubeconfig has not the form of one"
        elif not isinstance(error, config.ConfigException | FileNotFoundError):
            reason = f"the kubeconfig cannot be read ({reason})"
        raise OperatorError(
            f"no cluster to talk to: {reason}; set KUBECONFIG, or run inside a cluster",
            code="Missing",
        ) from None


def _kubeconfig(given: Path | None) -> str:
    """The path of the kubeconfig, or several as KUBECONFIG may hold them.

    Raises:
        ConfigException: none is there; the client would log that and go on without.
    """
    found = str(given or os.environ.get("KUBECONFIG") or "~/.kube/config")
    if not any(Path(each).expanduser().exists() for each in found.split(os.pathsep) if each):
        raise config.ConfigException(f"there is no kubeconfig {found}")
    return found


def is_in_cluster() -> bool:
    """Whether this runs in a pod that is to use its own service account."""
    return _IN_CLUSTER.exists() and not os.environ.get("KUBECONFIG")
