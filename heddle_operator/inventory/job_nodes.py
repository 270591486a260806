"""The nodes as one job sees them; only changed ones are looked at anew.

Invariant: the same as if each node were looked at each time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from heddle_operator.inventory.claims import counts
from heddle_operator.inventory.cluster_nodes import ClusterNodes, FactsTable, Node
from heddle_operator.inventory.node_history import NodeHistory
from heddle_operator.inventory.nodes import NodeFacts, NodeRequirements, NodeView
from heddle_operator.inventory.requests import (
    DEFAULT_SCHEDULER,
    GpuAllocation,
    gpus_held,
    gpus_of_others,
)
from heddle_operator.state.node_flap import NodeFlap
from heddle_operator.state.snapshot import ObservedNode

T = TypeVar("T")
Allocations = tuple[GpuAllocation, ...]


class Reader(Protocol):
    """Reads an object that anybody may have forged; see `MalformedObjects`."""

    def __call__(self, body: Mapping[str, Any], view: Callable[[], T], /) -> T | None:
        """Result of `view` on the object; None if it is unreadable."""


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """All nodes of a look.

    Attributes:
        nodes: that a plan may be made for, by name.
        unusable: nodes that take no new pods or will be gone, and why.
        held: by node: GPUs that pods of the job hold there, and that others hold or claim.
        flaps: nodes that are waited for because they flap.
        divided: of the unusable nodes those whose GPUs are not whole.
    """

    nodes: tuple[ObservedNode, ...] = ()
    unusable: tuple[tuple[str, str], ...] = ()
    held: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    flaps: tuple[NodeFlap, ...] = ()
    divided: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Use:
    """GPUs of a node that pods hold, as the job counts them.

    Attributes:
        is_timed: time alone may change it.
    """

    held: tuple[int, int] = (0, 0)
    lent: int = 0
    claims: Allocations = ()
    is_timed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A node at the last look."""

    node: Node
    on: Allocations
    facts: NodeFacts | None
    use: _Use
    view: NodeView | None
    flap: NodeFlap | None

    @property
    def is_settled(self) -> bool:
        """Whether the next look sees the same, unless the node or its pods change."""
        return not self.use.is_timed and self.flap is None


_UNUSED = _Use()


class JobNodes:
    """A job's view of a cluster's nodes.

    Args:
        cluster: the nodes of all jobs.
        job: namespace and uid.
        clock_offset_s: wall clock less the loop's clock.
        read: leaves out what cannot be read.
    """

    def __init__(
        self, cluster: ClusterNodes, job: tuple[str, str], clock_offset_s: float, read: Reader
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._offset_s = clock_offset_s
        self._read = read
        self._history = NodeHistory(clock_offset_s)
        self._rows: dict[str, _Row] = {}
        self._seen = NodesSeen()
        self._names: tuple[str, ...] | None = None
        self._generation = -1
        self._table: FactsTable | None = None
        self._schedulers: frozenset[str] = frozenset()
        self._jobs: frozenset[str] = frozenset()

    @property
    def gpus(self) -> int:
        """GPUs that the job's pods held or claimed at the last look."""
        return sum(own for own, _ in self._seen.held.values())

    def look(self, required: NodeRequirements, jobs: Collection[str], now: float) -> NodesSeen:
        """All nodes.

        Args:
            required: what the job asks of them.
            jobs: uids of the jobs among which GPUs are divided.
            now: by the loop's clock.
        """
        cluster, is_first = self._cluster, self._names is not self._cluster.names
        table, everybody = cluster.table(required), frozenset(jobs)
        is_other = table is not self._table
        are_others = everybody != self._jobs
        is_old = is_first or is_other or are_others or self._generation != cluster.generation
        scheduler = str(required.pod_spec.get("schedulerName") or DEFAULT_SCHEDULER)
        self._schedulers = frozenset((DEFAULT_SCHEDULER, scheduler))
        self._table, self._jobs, self._generation = table, everybody, cluster.generation
        if not is_old:
            changed = [name for name, row in self._rows.items() if not row.is_settled]
        else:
            nodes, on, rows = cluster.nodes, cluster.on, self._rows
            changed = [
                name
                for name in cluster.names
                if is_other
                or (row := rows.get(name)) is None
                or row.node is not nodes[name]
                or row.on is not on(name)
                or (are_others and row.on)
                or not row.is_settled
            ]
        found = {name: self._row(name, now) for name in changed}
        is_equal = not is_first and all(self._rows[name] == row for name, row in found.items())
        self._rows.update(found)
        if is_first:
            self._rows = {name: self._rows[name] for name in cluster.names}
            self._history.keep_only(cluster.names)
            self._names = cluster.names
        if not is_equal:
            self._seen = self._all()
        return self._seen

    def holds(self, name: str) -> bool:
        """Whether pods of the job hold or claim GPUs of a node."""
        return any(row.owner == self._job for row in self._cluster.on(name))

    def differs(self, name: str, now: float) -> bool:
        """Whether a look would see the node otherwise than the last one did."""
        row, node = self._rows.get(name), self._cluster.nodes.get(name)
        if row is None or node is None:
            return self._table is not None and not (row is None and node is None)
        facts = self._facts(name, node)
        return facts is not row.facts or self._use(name, node, now) != row.use

    def _row(self, name: str, now: float) -> _Row:
        node, on = self._cluster.nodes[name], self._cluster.on(name)
        facts, use = self._facts(name, node), self._use(name, node, now)
        flap = self._cluster.flaps.flap(name, now)
        view = None
        if facts is not None:
            waits_s = flap.until_s if flap is not None else None
            view = self._history.view(facts, use.held, now, use.lent, use.claims, waits_s)
        return _Row(node=node, on=on, facts=facts, use=use, view=view, flap=flap)

    def _facts(self, name: str, node: Node) -> NodeFacts | None:
        assert self._table is not None, "a look comes first"
        return self._read(node, partial(self._table.facts, name, node))

    def _use(self, name: str, node: Node, now: float) -> _Use:
        rows = self._cluster.on(name)
        if not rows:
            return _UNUSED
        waiting = tuple(row for row in rows if not row.is_bound and row.owner != self._job)
        requested, now_wall_s = self._cluster.requested(name), now + self._offset_s
        claims = tuple(
            row for row in waiting if counts(row, node, requested, now_wall_s, self._schedulers)
        )
        counted = [row for row in rows if row not in waiting or row in claims]
        held = gpus_held(counted, self._job).get(name, (0, 0))
        lent = gpus_of_others(counted, self._job, self._jobs).get(name, 0)
        # Where the job has pods itself, the claims of others are left out.
        return _Use(held, lent, () if held[0] else claims, bool(waiting))

    def _all(self) -> NodesSeen:
        views = [row.view for row in self._rows.values() if row.view is not None]
        return NodesSeen(
            tuple(view.seen for view in views if view.seen is not None),
            tuple((view.name, view.why) for view in views if view.why),
            {name: row.use.held for name, row in self._rows.items() if row.on},
            tuple(
                row.flap
                for row in self._rows.values()
                if row.flap is not None and row.view is not None and row.view.seen is not None
            ),
            frozenset(view.name for view in views if view.is_divided),
        )
