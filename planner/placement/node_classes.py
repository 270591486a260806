"""Nodes that are alike: to the search, a GPU type of their own.

A GPU of a large node has a smaller share of a NIC than one of a small node, so it matters on which
nodes a stage stands.  Where a plan says so, it is placed on a composition whose GPU types are
these classes.
Invariant: classes are sorted, so that equal compositions number them alike.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import GpuLimits
from planner.plans.plan import FilledTemplate


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class NodeClass:
    """Nodes that are alike: to the estimator, a GPU type of their own."""

    gpu_type: str  # of their GPUs
    gpus: int  # of one node
    speed_factor: float  # of its GPUs
    gpu_price: float  # money per GPU and hour; 0 where none is stated
    nic_bytes_per_s: float = 0.0  # of its network card, if a node states one; else 0
    paid_gpus: int = 0  # of all hosts of a node that are like it, where money is stated; else 0

    @staticmethod
    def of(node: Node) -> NodeClass:
        """The class of a node."""
        price, host = node.price or 0.0, node.host_of
        return NodeClass(
            gpu_type=node.gpu_type,
            gpus=node.gpus,
            speed_factor=node.speed_factor,
            gpu_price=price / (host.gpus if host else node.gpus),
            nic_bytes_per_s=node.nic_bytes_per_s or 0.0,
            paid_gpus=host.alike * node.gpus if host and price else 0,
        )


def class_sizes(composition: Composition) -> dict[NodeClass, int]:
    """How many nodes there are of each class, the classes sorted."""
    return dict(sorted(Counter(map(NodeClass.of, composition.nodes)).items()))


def sizes_at_any_speed(composition: Composition) -> dict[NodeClass, int]:
    """As `class_sizes`, as if nodes that differ in speed alone were as fast as the middle one."""
    found: dict[NodeClass, int] = {}
    middle = _middle_of(composition)
    for one, count in class_sizes(composition).items():
        joined = middle[replace(one, speed_factor=1.0)]
        found[joined] = found.get(joined, 0) + count
    return dict(sorted(found.items()))


def _middle_of(composition: Composition) -> dict[NodeClass, NodeClass]:
    """{class at full speed: the class of the node in the middle, ordered by speed}."""
    found: defaultdict[NodeClass, list[NodeClass]] = defaultdict(list)
    for one in sorted(map(NodeClass.of, composition.nodes)):
        found[replace(one, speed_factor=1.0)].append(one)
    return {key: alike[len(alike) // 2] for key, alike in found.items()}


def type_sizes(composition: Composition) -> dict[NodeClass, int]:
    """As `class_sizes`, as if all nodes of a GPU type were alike.

    They count as the node that half of their GPUs are in nodes no larger than; what is left of the
    last one counts as a node.
    """
    found = {}
    for gpu_type in composition.gpu_types:
        nodes = sorted(NodeClass.of(n) for n in composition.nodes if n.gpu_type == gpu_type)
        seats = [one for one in nodes for _ in range(one.gpus)]
        middle = seats[len(seats) // 2]
        found[middle] = math.ceil(len(seats) / middle.gpus)
    return dict(sorted(found.items()))


def within_limits(
    composition: Composition, max_gpus: GpuLimits, kept: Collection[str] = ()
) -> Composition:
    """The nodes that a plan within limits could use: of each class as many as it may use GPUs.

    Nodes of a class differ by name alone, so no plan is lost; those that are `kept` come first.
    Hosts of a class also differ by their node, for holders and money: a node keeps all of them.
    """
    if not max_gpus.binds(composition):
        return composition
    found: list[Node] = []
    names: defaultdict[NodeClass, set[str]] = defaultdict(set)
    for node in sorted(composition.nodes, key=lambda node: (node.name not in kept, node.name)):
        taken = names[NodeClass.of(node)]
        if node.whole in taken or len(taken) < max_gpus.most(node.gpu_type):
            taken.add(node.whole)
            found.append(node)
    return Composition(tuple(found))


def at_any_speed(composition: Composition) -> Composition:
    """The same nodes with the number of their class in `sizes_at_any_speed` as GPU type."""
    index = {one: str(number) for number, one in enumerate(sizes_at_any_speed(composition))}
    middle = _middle_of(composition)
    kinds = (middle[replace(NodeClass.of(n), speed_factor=1.0)] for n in composition.nodes)
    return Composition(
        tuple(
            replace(node, gpu_type=index[kind])
            for node, kind in zip(composition.nodes, kinds, strict=True)
        )
    )


def by_class(composition: Composition) -> Composition:
    """The same nodes with the number of their class as GPU type."""
    index = {one: str(number) for number, one in enumerate(class_sizes(composition))}
    return Composition(
        tuple(replace(node, gpu_type=index[NodeClass.of(node)]) for node in composition.nodes)
    )


def template_by_class(template: FilledTemplate, classes: Sequence[int]) -> FilledTemplate:
    """The same template with the number of a class as GPU type of each stage."""
    stages = tuple(
        replace(stage, gpu_type=str(number))
        for stage, number in zip(template.stages, classes, strict=True)
    )
    return replace(template, stages=stages)
