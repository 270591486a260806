"""Every placement of some templates on the nodes, one of each kind that costs the same.

Nodes that are alike (GPU type, GPUs, link domain, speed factor) may be exchanged: the evaluator
knows a node by these alone, and by who shares it.  GPUs of a node are alike too.  So of all
placements that differ only by the names of nodes that are alike, the one with the smallest node
indices is yielded: in it, no node is touched before an alike one with a smaller index, which is
what the walk below allows.  Replicas of a template may be exchanged as well where nothing depends
on their order, and templates of equal outline always; the smallest of those placements lists the
replicas of a template, and templates of equal outline, in ascending order (else exchanging two
neighbours would make it smaller).
Invariant: every placement equals one that is yielded up to these exchanges; a TP group never
crosses a node, no GPU is given twice.
Source: symmetry breaking by the least representative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.cluster.composition import Composition, Node
from planner.plans.plan import FilledTemplate, PlacedStage

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
    for flat in _Walk(outlines, composition.nodes, ordered).from_slot(0):
        yield _by_replica(outlines, flat)


class _Walk:
    """Gives each slot a node, one after the other."""

    def __init__(self, outlines: Sequence[Outline], nodes: Sequence[Node], ordered: bool) -> None:
        self._outlines, self._nodes, self._ordered = outlines, nodes, ordered
        self._before = [_alike_before(nodes, index) for index in range(len(nodes))]
        self._free = [node.gpus for node in nodes]
        self._slots = [
            (t, r, s, option)
            for t, (structure, replicas) in enumerate(outlines)
            for r in range(replicas)
            for s, option in enumerate(structure)
        ]
        self._chosen: list[int] = []

    def from_slot(self, position: int) -> Iterator[tuple[int, ...]]:
        if position == len(self._slots):
            yield tuple(self._chosen)
            return
        *_, (gpu_type, tp) = self._slots[position]
        for index, node in enumerate(self._nodes):
            if node.gpu_type != gpu_type or self._free[index] < tp or self._skips(index):
                continue
            self._chosen.append(index)
            if self._ascends(position):
                self._free[index] -= tp
                yield from self.from_slot(position + 1)
                self._free[index] += tp
            self._chosen.pop()

    def _skips(self, index: int) -> bool:
        """Whether an alike node before that one is untouched."""
        twin = self._before[index]
        return twin is not None and self._free[twin] == self._nodes[twin].gpus

    def _ascends(self, position: int) -> bool:
        """Whether what ends with that slot is no smaller than its equal neighbour before it."""
        t, r, s, _ = self._slots[position]
        structure, replicas = self._outlines[t]
        size, chosen = len(structure), self._chosen
        if s < size - 1:
            return True
        if not self._ordered and r and chosen[-size:] < chosen[-2 * size : -size]:
            return False
        size *= replicas
        if r < replicas - 1 or not t or self._outlines[t] != self._outlines[t - 1]:
            return True
        return chosen[-size:] >= chosen[-2 * size : -size]


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
