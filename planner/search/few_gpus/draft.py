"""A plan before its batch is shared, as plain tuples that a search over few GPUs changes.

Invariant: drafts in canonical form are equal exactly if they say the same plan, the names of GPUs
and the order of templates apart.
Source: Heddle, section 5.3 (fill, packing).   Legend: b micro-batch, D stages, n replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from planner.cluster.composition import Composition, Node
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.search.fill import Counts, Structure

Way = tuple[str, int, int]  # recomputation, EP, ETP (0: the TP degree) of a stage
Where = tuple[int, ...]  # index of the node of each stage of a replica


class Draft(NamedTuple):
    """A filled and placed template.

    Attributes:
        structure: [D] GPU type and TP degree of each stage.
        micro_batch: b.
        layers: [D] blocks of each stage.
        ways: [D] how each stage recomputes and spreads its experts.
        where: [n, D] the node of each stage of each replica.
    """

    structure: Structure
    micro_batch: int
    layers: tuple[int, ...]
    ways: tuple[Way, ...]
    where: tuple[Where, ...]

    @property
    def is_tiled(self) -> bool:
        """Whether a stage spreads its experts in another way than TP cuts the rest."""
        return any((ep, etp) != (1, 0) for _, ep, etp in self.ways)

    def stages(self) -> tuple[Stage, ...]:
        """As a template has them."""
        return tuple(
            Stage(gpu_type, tp, layers, *way)
            for (gpu_type, tp), layers, way in zip(
                self.structure, self.layers, self.ways, strict=True
            )
        )


Drafts = tuple[Draft, ...]  # a whole plan


def canonical_drafts(drafts: Iterable[Draft], twins: Sequence[Sequence[int]] = ()) -> Drafts:
    """One form of a plan: templates that could be one are one, all are sorted.

    The order of replicas is kept where experts are spread: neighbours share them.

    Args:
        drafts: the templates.
        twins: for each node, all nodes that are like it, ascending; they are used in that order.
    """
    merged: dict[tuple[object, ...], Draft] = {}
    for index, draft in enumerate(sorted(drafts)):
        key = (draft[:4], index if draft.is_tiled else -1)
        merged[key] = (
            draft._replace(where=merged[key].where + draft.where) if key in merged else draft
        )
    renamed = _renamed(merged.values(), twins) if twins else merged.values()
    return tuple(
        sorted(
            draft if draft.is_tiled else draft._replace(where=tuple(sorted(draft.where)))
            for draft in renamed
        )
    )


def _renamed(drafts: Iterable[Draft], twins: Sequence[Sequence[int]]) -> list[Draft]:
    names: dict[int, int] = {}
    used: dict[int, int] = {}
    found = []
    for draft in drafts:
        for where in draft.where:
            for node in where:
                if node not in names:
                    first = twins[node][0]
                    names[node] = twins[node][used.get(first, 0)]
                    used[first] = used.get(first, 0) + 1
        found.append(
            draft._replace(
                where=tuple(tuple([names[node] for node in where]) for where in draft.where)
            )
        )
    return found


def counts_of_drafts(drafts: Drafts) -> Counts:
    """Structures and replica counts of a plan."""
    counts: dict[Structure, int] = {}
    for draft in drafts:
        counts[draft.structure] = counts.get(draft.structure, 0) + len(draft.where)
    return tuple(sorted(counts.items()))


def twins_of(composition: Composition) -> tuple[tuple[int, ...], ...]:
    """For each node, all nodes that differ from it by name alone, ascending."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, node in enumerate(composition.nodes):
        alike.setdefault(_kind(node), []).append(index)
    return tuple(tuple(alike[_kind(node)]) for node in composition.nodes)


def _kind(node: Node) -> tuple[object, ...]:
    return (
        node.gpu_type,
        node.gpus,
        node.link_domain,
        node.speed_factor,
        node.price,
        node.nic_bytes_per_s,
    )


def drafts_of(plan: Plan, composition: Composition) -> Drafts:
    """A placed plan as drafts."""
    index = {node.name: i for i, node in enumerate(composition.nodes)}
    places = iter(plan.placement)
    return canonical_drafts(
        Draft(
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


def holders_of(drafts: Drafts, layers: int) -> int:
    """On how many nodes every block lives at least.

    Embedding and head live where the first and the last block do, so they need no look.

    Args:
        drafts: filled.
        layers: L; 0: nobody asks, the answer is 1.
    """
    homes: list[set[int]] = [set() for _ in range(layers)]
    for draft in drafts if layers else ():
        start = 0
        for s, count in enumerate(draft.layers):
            nodes = {where[s] for where in draft.where}
            for layer in range(start, start + count):
                homes[layer] |= nodes
            start += count
    return min(map(len, homes), default=1)


def plan_of(drafts: Drafts, shares: Sequence[int], composition: Composition) -> Plan:
    """The plan of drafts with M of each replica; every node gives its GPUs in ascending order."""
    given = [0] * len(composition.nodes)
    templates, placed = [], []
    first = 0
    for t, draft in enumerate(drafts):
        replicas = len(draft.where)
        templates.append(
            FilledTemplate(
                draft.stages(), draft.micro_batch, tuple(shares[first : first + replicas])
            )
        )
        first += replicas
        for r, where in enumerate(draft.where):
            for s, ((_, tp), node) in enumerate(zip(draft.structure, where, strict=True)):
                gpus = tuple(range(given[node], given[node] + tp))
                given[node] += tp
                placed.append(PlacedStage(t, r, s, composition.nodes[node].name, gpus))
    return Plan(tuple(templates), tuple(placed))
