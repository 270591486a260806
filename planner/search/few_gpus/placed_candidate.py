"""Placed candidates: plans whose batch is not shared yet, as tuples that a search changes.

Invariant: candidates in canonical form are equal exactly if they say the same plan, the names of
GPUs and the order of templates apart.
Source: Heddle, section 5.3 (fill, packing).   Legend: b micro-batch, D stages, n replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from planner.cluster.composition import Composition, Node
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage, joins_replicas
from planner.search.fill import Structure

Configuration = tuple[str, int, int]  # recomputation, EP, ETP (0: the TP degree) of a stage
Where = tuple[int, ...]  # index of the node of each stage of a replica


class PlacedTemplate(NamedTuple):
    """A filled and placed template.

    Attributes:
        structure: [D] GPU type and TP degree of each stage.
        micro_batch: b.
        layers: [D] blocks of each stage.
        configurations: [D] how each stage recomputes and spreads its experts.
        where: [n, D] the node of each stage of each replica.
    """

    structure: Structure
    micro_batch: int
    layers: tuple[int, ...]
    configurations: tuple[Configuration, ...]
    where: tuple[Where, ...]

    @property
    def is_tiled(self) -> bool:
        """Whether a stage spreads its experts in another way than TP cuts the rest."""
        return any((ep, etp) != (1, 0) for _, ep, etp in self.configurations)

    @property
    def is_in_lock_step(self) -> bool:
        """Whether its replicas go on together, as `FilledTemplate` says."""
        return any(
            joins_replicas(tp, ep, etp or tp)
            for (_, tp), (_, ep, etp) in zip(self.structure, self.configurations, strict=True)
        )


PlacedCandidate = tuple[PlacedTemplate, ...]


def canonical(
    templates: Iterable[PlacedTemplate], twins: Sequence[Sequence[int]] = ()
) -> PlacedCandidate:
    """One form of a plan: templates that could be one are one, all are sorted.

    The order of replicas is kept where experts are spread: neighbours share them.

    Args:
        templates: of the plan.
        twins: for each node, all nodes that are like it, ascending; they are used in that order.
    """
    merged: dict[tuple[object, ...], PlacedTemplate] = {}
    for index, one in enumerate(sorted(templates)):
        key: tuple[object, ...] = (one[:4], index if one.is_tiled else -1)
        merged[key] = one._replace(where=merged[key].where + one.where) if key in merged else one
    if twins:
        names = _first_uses(merged.values(), twins)
        for key, one in merged.items():
            where = tuple(tuple([names[node] for node in nodes]) for nodes in one.where)
            merged[key] = one._replace(where=where)
    return tuple(
        sorted(
            one if one.is_tiled else one._replace(where=tuple(sorted(one.where)))
            for one in merged.values()
        )
    )


def _first_uses(
    templates: Iterable[PlacedTemplate], twins: Sequence[Sequence[int]]
) -> dict[int, int]:
    """{node: the one of its twins that stands for it}, in the order of their use."""
    names: dict[int, int] = {}
    used: dict[int, int] = {}
    for node in (node for one in templates for nodes in one.where for node in nodes):
        if node not in names:
            first = twins[node][0]
            names[node] = twins[node][used.get(first, 0)]
            used[first] = used.get(first, 0) + 1
    return names


def twins_of(composition: Composition, *, by_node: bool = False) -> tuple[tuple[int, ...], ...]:
    """For each node, all nodes that differ from it by name alone, ascending.

    Args:
        composition: of the nodes.
        by_node: whether hosts of different nodes differ, as they do for holders and for money.
    """

    def kind(node: Node) -> tuple[object, ...]:
        links = node.link_domain, node.nic_bytes_per_s
        whole = node.whole if by_node and node.host_of else None
        return node.gpu_type, node.gpus, node.speed_factor, node.price, links, whole

    alike: dict[tuple[object, ...], list[int]] = {}
    for index, node in enumerate(composition.nodes):
        alike.setdefault(kind(node), []).append(index)
    return tuple(tuple(alike[kind(node)]) for node in composition.nodes)


def candidate_of(plan: Plan, composition: Composition) -> PlacedCandidate:
    """A placed plan as a candidate."""
    index = {node.name: i for i, node in enumerate(composition.nodes)}
    places = iter(plan.placement)
    return canonical(
        PlacedTemplate(
            tuple((stage.gpu_type, stage.tp) for stage in template.stages),
            template.micro_batch,
            tuple(stage.layers for stage in template.stages),
            tuple(
                (stage.recompute, stage.ep, stage.expert_tp if stage.is_tiled else 0)
                for stage in template.stages
            ),
            tuple(
                tuple(index[next(places).node] for _ in template.stages)
                for _ in range(template.replicas)
            ),
        )
        for template in plan.templates
    )


def plan_of(candidate: PlacedCandidate, shares: Sequence[int], composition: Composition) -> Plan:
    """The plan with M of each replica; every node gives its GPUs in ascending order."""
    given = [0] * len(composition.nodes)
    templates, placed = [], []
    left = iter(shares)
    for t, one in enumerate(candidate):
        rows = zip(one.structure, one.layers, one.configurations, strict=True)
        stages = tuple(
            Stage(gpu_type=kind, tp=tp, layers=layers, recompute=how, ep=ep, etp=etp)
            for (kind, tp), layers, (how, ep, etp) in rows
        )
        micro_batches = tuple(next(left) for _ in one.where)
        templates.append(FilledTemplate(stages, one.micro_batch, micro_batches))
        for r, nodes in enumerate(one.where):
            for s, ((_, tp), node) in enumerate(zip(one.structure, nodes, strict=True)):
                gpus = tuple(range(given[node], given[node] + tp))
                given[node] += tp
                placed.append(PlacedStage(t, r, s, composition.nodes[node].name, gpus))
    return Plan(tuple(templates), tuple(placed))
