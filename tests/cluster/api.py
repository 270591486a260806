"""Read the API server, and wait for what it shows, woken by its events instead of a clock."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

from tests.cluster.certificates import Identity
from tests.cluster.configuration import GPU_RESOURCE
from tests.cluster.errors import ClusterFailed

Json: TypeAlias = dict[str, Any]
Claim: TypeAlias = Callable[[Mapping[str, Json]], bool]
NODES = "/api/v1/nodes"
_ANSWERS_WITHIN_S = 10.0
_LOOK_AGAIN_S = 0.1


def pods(namespace: str = "default") -> str:
    """Path of the pods of a namespace."""
    return f"/api/v1/namespaces/{namespace}/pods"


def condition(resource: Json, kind: str) -> str:
    """The status of a condition: "True", "False", "Unknown", or "" where there is none."""
    found = resource.get("status", {}).get("conditions", ())
    return next((str(c["status"]) for c in found if c["type"] == kind), "")


def gpus(node: Json) -> int:
    """How many GPUs of a node can be had: its allocatable, 0 while it names none."""
    return int(node.get("status", {}).get("allocatable", {}).get(GPU_RESOURCE, 0))


@dataclass(frozen=True, slots=True)
class Api:
    """The API server behind a port of this host's loopback."""

    port: int
    authority: Path
    identity: Identity

    def get(self, path: str) -> Json:
        """The resource, or the list, at `path`.

        Raises:
            ClusterFailed: the server says no.
        """
        with closing(self._connect(_ANSWERS_WITHIN_S)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
            if response.status != http.client.OK:
                raise ClusterFailed(f"GET {path}: {response.status} {body.decode()[:300]}")
            found: Json = json.loads(body)
            return found

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait for the server's own claim that it is ready.

        Raises:
            ClusterFailed: it is not within the time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with closing(self._connect(_ANSWERS_WITHIN_S)) as connection:
                    connection.request("GET", "/readyz")
                    if connection.getresponse().status == http.client.OK:
                        return
            except OSError:
                pass  # not listening yet
            except http.client.HTTPException:
                pass  # the forwarder closed: nobody listens behind it yet
            if time.monotonic() > deadline:
                raise ClusterFailed(f"the API server is not ready after {timeout_s:g} s")
            time.sleep(_LOOK_AGAIN_S)

    def wait(self, path: str, claim: Claim, timeout_s: float, what: str) -> dict[str, Json]:
        """Wait until the list at `path` satisfies the claim, and return it by name.

        Args:
            claim: of {name: resource}; asked at first and at each event.
            what: ends the sentence "waited for ..." where it never holds.

        Raises:
            ClusterFailed: the claim does not hold within the time.
        """
        deadline = time.monotonic() + timeout_s
        seen: dict[str, Json] = {}
        while time.monotonic() < deadline:
            try:
                for seen in self.watch(path, deadline):
                    if claim(seen):
                        return seen
            except (OSError, http.client.HTTPException, ClusterFailed):
                time.sleep(_LOOK_AGAIN_S)  # the server went away; list again once it is back
        raise ClusterFailed(f"waited {timeout_s:g} s for {what}; there were {sorted(seen)}")

    def watch(self, path: str, deadline: float) -> Iterator[dict[str, Json]]:
        """The list at `path` by name, now and after each event; ends at the deadline.

        Args:
            deadline: of the monotonic clock, in seconds.

        Raises:
            OSError, HTTPException, ClusterFailed: the server went away.
        """
        listed = self.get(path)
        state = {item["metadata"]["name"]: item for item in listed["items"]}
        yield state
        left_s = max(1, int(deadline - time.monotonic()))
        query = {
            "watch": "1",
            "resourceVersion": listed["metadata"]["resourceVersion"],
            "timeoutSeconds": left_s,
        }
        with closing(self._connect(left_s + 1.0)) as connection:
            connection.request("GET", f"{path}{'&' if '?' in path else '?'}{urlencode(query)}")
            response = connection.getresponse()
            while line := response.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                name = event["object"]["metadata"]["name"]
                if event["type"] == "DELETED":
                    state.pop(name, None)
                else:
                    state[name] = event["object"]
                yield state

    def _connect(self, timeout_s: float) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.identity.certificate, self.identity.key)
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=timeout_s, context=context
        )
