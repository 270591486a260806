"""The nodes of a cluster and what pods have of them, read once for all jobs.

Invariant: what did not change is the same object as before, so that whoever has read it need not
read it again.
Source: kube-scheduler's `NodeInfo` snapshot and its generations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from weakref import WeakValueDictionary

from heddle_operator.inventory.node_flaps import NodeFlaps
from heddle_operator.inventory.nodes import (
    NodeFacts,
    NodeRequirements,
    facts_of,
    ready_since_text,
)
from heddle_operator.inventory.quantities import whole
from heddle_operator.inventory.requests import GPU, GpuAllocation, Requests

Node = Mapping[str, Any]


class FactsTable:
    """Offers of all nodes to jobs with the same requirements; each Node is read once a change."""

    def __init__(self, required: NodeRequirements) -> None:
        self._required = required
        self._rows: dict[str, tuple[Node, NodeFacts | Exception]] = {}

    def facts(self, name: str, node: Node) -> NodeFacts:
        """Of a Node.

        Raises:
            Exception: it cannot be read, as `facts_of` says.
        """
        row = self._rows.get(name)
        if row is None or row[0] is not node:
            row = self._rows[name] = node, self._read(node, row[1] if row else None)
        if isinstance(row[1], Exception):
            raise row[1].with_traceback(None)  # else it would grow with each time
        return row[1]

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._rows.pop(name, None)

    def _read(self, node: Node, before: NodeFacts | Exception | None) -> NodeFacts | Exception:
        try:
            facts = facts_of(node, self._required)
        except Exception as error:
            return error
        return before if isinstance(before, NodeFacts) and before == facts else facts


class ClusterNodes:
    """Nodes by name, allocations of their GPUs, and which of them flap.

    Attributes:
        nodes: Node objects, as far as anything of them is read.
        names: of all nodes, in order.
        allocations: GPUs that pods hold or claim, by the pod's uid.
        generation: grows with each change of any of these.
        flaps: what was seen of nodes that were not ready.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.names: tuple[str, ...] = ()
        self.allocations: dict[str, GpuAllocation] = {}
        self.generation = 0
        self.flaps = NodeFlaps()
        self._on: dict[str, tuple[GpuAllocation, ...]] = {}
        self._requests: dict[str, tuple[str, Requests]] = {}  # by pod uid: node and what it takes
        self._requested: dict[str, dict[str, Decimal]] = {}
        self._tables: WeakValueDictionary[str, FactsTable] = WeakValueDictionary()

    def table(self, required: NodeRequirements) -> FactsTable:
        """The table of all jobs that require the same."""
        spec = {key: required.pod_spec.get(key) for key in ("tolerations", "nodeSelector")}
        affinity = (required.pod_spec.get("affinity") or {}).get("nodeAffinity")
        said = [spec, affinity, required.leave_on_cordon, required.gpu_types]
        key = json.dumps(said, sort_keys=True, default=str)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = FactsTable(required)
        return table

    @property
    def largest_gpus(self) -> int:
        """GPUs of the node with most of them; at least 1."""
        found = (whole(node["status"]["allocatable"].get(GPU)) for node in self.nodes.values())
        return max(found, default=1) or 1

    def on(self, node: str) -> tuple[GpuAllocation, ...]:
        """GPUs of a node that pods hold or claim."""
        return self._on.get(node, ())

    def requested(self, node: str) -> Requests:
        """By resource: what pods that are bound to a node ask for together."""
        return self._requested.get(node, {})

    def put_node(self, name: str, node: Node, now: float) -> None:
        """A node is there, or has changed."""
        if name not in self.nodes:
            self.names = tuple(sorted((*self.nodes, name)))
        self.nodes[name] = node
        self.generation += 1
        self.flaps.seen(name, ready_since_text(node), now)

    def drop_node(self, name: str) -> bool:
        """A node is gone; False if it was not known."""
        if self.nodes.pop(name, None) is None:
            return False
        self.names = tuple(each for each in self.names if each != name)
        self.generation += 1
        self.flaps.gone(name)
        for table in self._tables.values():
            table.forget(name)
        return True

    def allocate(self, uid: str, allocation: GpuAllocation | None) -> tuple[str, ...]:
        """A pod holds or claims these GPUs, or none; returns the nodes for which that is new."""
        before = self.allocations.get(uid)
        if before == allocation:
            return ()
        if before is not None:
            del self.allocations[uid]
            self._set(before.node, tuple(row for row in self.on(before.node) if row is not before))
        if allocation is not None:
            self.allocations[uid] = allocation
            self._set(allocation.node, (*self.on(allocation.node), allocation))
        self.generation += 1
        return tuple({row.node: None for row in (before, allocation) if row is not None})

    def request(self, uid: str, node: str, requests: Requests) -> None:
        """A pod takes room of a node; "" for the node: of none any more."""
        before = self._requests.pop(uid, None)
        if before is not None:
            self._add(before[0], before[1], Decimal(-1))
        if node:
            self._requests[uid] = node, requests
            self._add(node, requests, Decimal(1))

    def _set(self, node: str, rows: tuple[GpuAllocation, ...]) -> None:
        if rows:
            self._on[node] = rows
        else:
            self._on.pop(node, None)

    def _add(self, node: str, requests: Requests, sign: Decimal) -> None:
        total = self._requested.setdefault(node, {})
        for name, asked in requests.items():
            total[name] = total.get(name, Decimal(0)) + sign * asked
        if not total.get("pods"):
            del self._requested[node]
