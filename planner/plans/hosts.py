"""Nodes of several hosts: to whoever places and prices, each host is a node.

Two worker pods on one node cannot use NVLink or shared memory between them, because NCCL takes them
for two hosts.  So a TP group stays in one host, and messages between two take the network card.
Invariant: hosts share the card of their node by their GPUs, so that they never have more than it
together; a plan that is put on hosts and back on nodes is the same plan.
Source: NCCL compares host names (with `hostNetwork` NCCL_HOSTID); docs/decisions/0036.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.cluster.composition import Composition, HostOf, Node
from planner.plans.plan import Plan
from planner.profiles.profile import Profile


def with_hosts(composition: Composition, profile: Profile) -> Composition:
    """Each host as a node of its own; the composition itself where every node is one host.

    A host has a share of its node's network card, by its GPUs.  Its price is the whole node's,
    which is paid once, however many of the hosts are used.
    """
    if not any(node.hosts for node in composition.nodes):
        return composition
    return Composition(
        tuple(host for node in composition.nodes for host in _hosts_of(node, profile))
    )


def _hosts_of(node: Node, profile: Profile) -> Iterator[Node]:
    if not node.hosts:
        yield node
        return
    usual = profile.between_nodes(node.gpu_type).bandwidth_bytes_per_s
    card, first = node.nic_bytes_per_s or usual, 0
    for index, gpus in enumerate(node.hosts):
        yield replace(
            node,
            name=f"{node.name}/{index}",
            gpus=gpus,
            nic_bytes_per_s=card * gpus / node.gpus,
            hosts=(),
            host_of=HostOf(node.name, first, node.gpus, node.hosts.count(gpus)),
        )
        first += gpus


def plan_on_hosts(plan: Plan, composition: Composition) -> Plan | None:
    """The plan with hosts in place of their nodes; None if a TP group of it crosses two hosts.

    Args:
        plan: placed on nodes.
        composition: as `with_hosts` gives it; a node that it lacks stays as it is.
    """
    hosts: dict[str, list[Node]] = {}
    for node in composition.nodes:
        if node.host_of is not None:
            hosts.setdefault(node.whole, []).append(node)
    if not hosts:
        return plan
    placement = []
    for placed in plan.placement:
        if placed.node in hosts:
            first, gpu = min(placed.gpus), max(placed.gpus)
            host, start = _host_at(hosts[placed.node], gpu)
            if first < start:
                return None
            gpus = tuple(index - start for index in placed.gpus)
            placed = replace(placed, node=host, gpus=gpus)
        placement.append(placed)
    return replace(plan, placement=tuple(placement))


def _host_at(hosts: list[Node], gpu: int) -> tuple[str, int]:
    """(name, first GPU) of the host with that GPU of the node, of the last one for any beyond."""
    places = [(host.host_of.first, host.name) for host in hosts if host.host_of is not None]
    start, name = max(place for place in places if place[0] <= gpu)
    return name, start


def plan_on_nodes(plan: Plan, composition: Composition) -> Plan:
    """The plan with nodes in place of their hosts, the inverse of `plan_on_hosts`."""
    hosts = {node.name: node.host_of[:2] for node in composition.nodes if node.host_of is not None}
    if not hosts:
        return plan
    placement = []
    for placed in plan.placement:
        if placed.node in hosts:
            node, start = hosts[placed.node]
            placed = replace(placed, node=node, gpus=tuple(gpu + start for gpu in placed.gpus))
        placement.append(placed)
    return replace(plan, placement=tuple(placement))
