"""Requests to the API server: plain objects in and out, its refusals as one error.

The only file that knows the `kubernetes` client.  Typed models are left out on purpose: bodies are
data that pure files make and read.
Source: the Kubernetes API conventions (verbs, status codes, resourceVersion).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, ApiException, Configuration

from heddle_operator.apis.errors import OperatorError

Body = dict[str, Any]
REQUEST_S = 15.0
MERGE_PATCH = "application/merge-patch+json"
CONNECTIONS = 32
_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class ApiRefused(OperatorError):
    """The API server refused a request.

    Attributes:
        status: of HTTP; 0 if there was no answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KubeApi:
    """A connection to one API server; use it as a context.

    Attributes:
        namespace: where to look unless somebody says otherwise, as kubectl would.
    """

    def __init__(self, configuration: Configuration, namespace: str = "default") -> None:
        self.namespace = namespace
        self._client = ApiClient(configuration)

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

    async def delete(self, path: str, grace_s: int | None = None, uid: str = "") -> None:
        """Delete an object; one that is gone, or that is another one by now, is fine."""
        options: Body = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
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
        return (await self._send("GET", path, None, query, "application/json")).decode(
            errors="replace"
        )

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
        answer: Body = json.loads(await self._send(method, path, body, query or {}, content_type))
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        body: Body | None,
        query: Mapping[str, str],
        content_type: str,
    ) -> bytes:
        headers = {"Accept": "application/json, */*", "Content-Type": content_type}
        try:
            request = await self._client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(*request, _request_timeout=REQUEST_S)
            data: bytes = await answer.read()
        except ApiException as error:
            raise ApiRefused(int(error.status or 0), _message(error)) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            words = str(error) or type(error).__name__
            raise ApiRefused(0, f"the API server {self.server} does not answer: {words}") from None
        if answer.status >= 400:
            raise ApiRefused(answer.status, _said(data) or f"HTTP {answer.status}")
        return data


# What the client raises at a kubeconfig that is broken: it takes its form for granted.
_BROKEN = (
    config.ConfigException,
    OSError,
    ValueError,
    yaml.YAMLError,
    TypeError,
    AttributeError,
    KeyError,
)


async def connect(kubeconfig: Path | None = None) -> KubeApi:
    """A connection as kubectl would make it, or that of the pod that this runs in.

    Args:
        kubeconfig: where it is; by default where kubectl looks.

    Raises:
        OperatorError: there is neither a kubeconfig nor a service account, or it is broken.
    """
    configuration = Configuration()
    configuration.connection_pool_maxsize = CONNECTIONS
    try:
        if is_in_cluster() and kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
            namespace = _IN_CLUSTER.with_name("namespace").read_text(encoding="utf-8").strip()
        else:
            file = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG") or None
            await config.load_kube_config(config_file=file, client_configuration=configuration)
            _, chosen = config.list_kube_config_contexts(config_file=file)
            namespace = str(chosen["context"].get("namespace") or "default")
        return KubeApi(configuration, namespace)
    except _BROKEN as error:
        reason = " ".join(str(error).split())
        if not isinstance(error, config.ConfigException | OSError):
            reason = f"the kubeconfig cannot be read ({reason})"
        raise OperatorError(
            f"no cluster to talk to: {reason}; set KUBECONFIG, or run inside a cluster"
        ) from None


def is_in_cluster() -> bool:
    """Whether this runs in a pod that is to use its own service account."""
    return _IN_CLUSTER.exists() and "KUBECONFIG" not in os.environ


def _message(error: ApiException) -> str:
    body = error.body.encode() if isinstance(error.body, str) else (error.body or b"")
    return _said(body) or str(error.reason)


def _said(data: bytes) -> str:
    """The message of a Status object."""
    try:
        return str(json.loads(data).get("message", ""))
    except (ValueError, AttributeError):
        return data.decode(errors="replace").strip()
