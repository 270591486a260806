"""Every placement of some templates on the nodes, one of each kind that costs the same.

Nodes that are alike (GPU type, GPUs, link domain, speed factor) may be exchanged: the evaluator
knows a node by these alone, and by who shares it.  GPUs of a node are alike too.  So of all
placements that differ only by the names of nodes that are alike, the one with the smallest node
indices is yielded: in it, no node is touched before an alike one with a smaller index, which is
what the walk below allows.  Replicas of a template may be exchanged as well where nothing depends
on their order; the smallest of those placements lists the replicas of a template in ascending
order (else exchanging two neighbours would make it smaller).
Invariant: every placement equals one that is yielded up to these exchanges; a TP group never
crosses a node, no GPU is given twice.
Source: design, "Plan" (placement); symmetry breaking by the least representative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.composition import Composition, Node
from planner.plan import FilledTemplate, PlacedStage

Option = tuple[str, int]  # GPU type, TP degree
Structure = tuple[Option, ...]  # the stages of a template, before any fill
Outline = tuple[Structure, int]  # a template and its number of replicas, before any fill
Where = tuple[int, ...]  # index of a node for each stage of a replica


def every_placement(
    outlines: Sequence[Outline], composition: Composition, *, ordered: bool
) -> Iterator[tuple[tuple[Where, ...], ...]]:
    """The nodes of each replica of each template, for every placement that may cost something else.

    Args:
        outlines: the templates.
        composition: the nodes.
        ordered: whether it matters which replica of a template is which.
    """
    nodes = composition.nodes
    before = [_alike_before(nodes, index) for index in range(len(nodes))]
    free = [node.gpus for node in nodes]
    slots = [
        (t, r, s, gpu_type, tp)
        for t, (structure, replicas) in enumerate(outlines)
        for r in range(replicas)
        for s, (gpu_type, tp) in enumerate(structure)
    ]
    chosen: list[int] = []

    def walk(position: int) -> Iterator[tuple[int, ...]]:
        if position == len(slots):
            yield tuple(chosen)
            return
        t, r, s, gpu_type, tp = slots[position]
        depth = len(outlines[t][0])
        for index, node in enumerate(nodes):
            twin = before[index]
            if node.gpu_type != gpu_type or free[index] < tp:
                continue
            if twin is not None and free[twin] == nodes[twin].gpus:
                continue  # an alike node before it is untouched: take that one
            chosen.append(index)
            is_sorted = ordered or r == 0 or s < depth - 1
            if is_sorted or chosen[-depth:] >= chosen[-2 * depth : -depth]:
                free[index] -= tp
                yield from walk(position + 1)
                free[index] += tp
            chosen.pop()

    for flat in walk(0):
        yield _by_replica(outlines, flat)


def _alike_before(nodes: Sequence[Node], index: int) -> int | None:
    """The last node before that one that can stand in for it."""

    def kind(node: Node) -> tuple[object, ...]:
        return node.gpu_type, node.gpus, node.link_domain, node.speed_factor

    alike = [i for i in range(index) if kind(nodes[i]) == kind(nodes[index])]
    return alike[-1] if alike else None


def _by_replica(outlines: Sequence[Outline], flat: Sequence[int]) -> tuple[tuple[Where, ...], ...]:
    rows, start = [], 0
    for structure, replicas in outlines:
        depth = len(structure)
        rows.append(
            tuple(tuple(flat[start + r * depth : start + (r + 1) * depth]) for r in range(replicas))
        )
        start += depth * replicas
    return tuple(rows)


def placed_stages(
    templates: Sequence[FilledTemplate],
    where: Sequence[Sequence[Where]],
    composition: Composition,
) -> tuple[PlacedStage, ...]:
    """A placement in plan order; every node gives its GPUs in ascending order."""
    given = dict.fromkeys(range(len(composition.nodes)), 0)
    placed = []
    for t, template in enumerate(templates):
        for r, nodes in enumerate(where[t]):
            for s, (stage, index) in enumerate(zip(template.stages, nodes, strict=True)):
                gpus = tuple(range(given[index], given[index] + stage.tp))
                given[index] += stage.tp
                placed.append(PlacedStage(t, r, s, composition.nodes[index].name, gpus))
    return tuple(placed)
