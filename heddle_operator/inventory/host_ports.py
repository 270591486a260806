"""Ports of pods that have the network of their host: each its own, of the administrator's range.

The declared port is a host port, so the scheduler binds no second pod with it to a node.  The
choice keeps pods out of each other's way beforehand.
Invariant: the same pod on the same node with the same others gets the same port within a minute.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from heddle_operator.apis.errors import NoHostPort
from heddle_operator.apis.labels import AGENT_PORT, WORKER

PORTS = "8470-8533"  # of the range, unless the administrator says otherwise
AGENT = "agent"  # the name of the port on which the operator calls


def range_of(text: str) -> range | None:
    """The ports of FIRST-LAST; None: it is no such range."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()):
        return None
    ports = range(int(first), int(last) + 1)
    return ports if ports and ports[0] > 0 and ports[-1] < 1 << 16 else None


def has_host_network(spec: Mapping[str, Any]) -> bool:
    """Whether pods of this spec have the network of their host."""
    return spec.get("hostNetwork") is True


def host_ports(pods: Iterable[Mapping[str, Any]]) -> frozenset[int]:
    """Ports of a node that pods there take."""
    found = set[int]()
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        spec = pod["spec"]
        for one in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            for row in one.get("ports") or ():
                port = row.get("containerPort" if has_host_network(spec) else "hostPort")
                found |= {port} if port else set()
    return frozenset(found)


class NodePorts:
    """Ports that pods take, by node."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, frozenset[int]]] = {}  # by node and by the pod's uid
        self._nodes: dict[str, str] = {}  # by uid

    def take(self, uid: str, node: str, pod: Mapping[str, Any]) -> None:
        """A pod takes its ports of this node, and of no other any more; of "" none."""
        self.release(uid)
        ports = host_ports([pod]) if node else frozenset()
        if ports:
            self._of.setdefault(node, {})[uid], self._nodes[uid] = ports, node

    def release(self, uid: str) -> None:
        """A pod takes no port any more."""
        node = self._nodes.pop(uid, "")
        if node:
            del self._of[node][uid]
            if not self._of[node]:
                del self._of[node]

    def of(self, node: str) -> frozenset[int]:
        """Ports of a node that pods take."""
        return frozenset[int]().union(*self._of.get(node, {}).values())


def free_port(ports: range, taken: frozenset[int], begin: str, node: str) -> int:
    """The port of a pod: each begins its look elsewhere, so that two at once seldom meet.

    Args:
        ports: that the administrator gives.
        taken: of them and others, on the node.
        begin: text that decides where the look begins.
        node: its name.

    Raises:
        NoHostPort: all are taken.
    """
    start = zlib.crc32(begin.encode()) % len(ports)
    found = next((port for port in (*ports[start:], *ports[:start]) if port not in taken), None)
    if found is not None:
        return int(found)
    raise NoHostPort(
        f"all ports {ports[0]}-{ports[-1]} of node {node} are taken by pods; make the chart's "
        "worker.gpu.hostPorts larger",
        field="worker.gpu.hostPorts",
        code="Taken",
    )


def agent_port(spec: Mapping[str, Any]) -> int:
    """The port of a pod on which its agent listens."""
    if not has_host_network(spec):
        return AGENT_PORT
    for one in spec["containers"]:
        for row in one.get("ports") or () if one["name"] == WORKER else ():
            if row.get("name") == AGENT:
                return int(row["containerPort"])
    return AGENT_PORT
