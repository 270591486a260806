"""First placements of a bag of templates on few nodes: what a descent starts from.

By replica and by stage as `planner.placement.place` rules, and by layer: stages of all templates
that hold about the same layers share nodes, so that their gradients are summed inside; each of them
also with the slow nodes for the fast ones.
Invariant: a TP group never crosses a node, and no node holds more than its GPUs.
Source: Heddle, section 5.3 (packing).   Legend: D stages, n replicas.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.cluster.composition import Composition
from planner.model.shape import ModelShape
from planner.placement.place import Rule, place
from planner.plans.plan import FilledTemplate, Stage
from planner.search.few_gpus.draft import Draft, Drafts
from planner.search.fill import Counts


class FirstPlacements:
    """First placements on one composition."""

    def __init__(self, model: ModelShape, composition: Composition, min_holders: int) -> None:
        """Prepare.

        Args:
            model: what is trained.
            composition: the nodes.
            min_holders: above 1, copies of the same layers go to different nodes where they can.
        """
        self._model, self._composition = model, composition
        self._min_holders = min_holders
        self._mirror = _mirror(composition)

    def of(self, counts: Counts) -> Iterator[Drafts]:
        """Templates that are placed and not filled yet, each placement once."""
        found: dict[Drafts, None] = {}
        for where in (
            self._by_rule(counts, "by replica"),
            self._by_rule(counts, "by stage"),
            self._by_layer(counts),
        ):
            if where is not None:
                mirrored = [self._mirror.get(node, node) for node in where]
                found |= dict.fromkeys((_drafts(counts, where), _drafts(counts, mirrored)))
        yield from found

    def _by_rule(self, counts: Counts, rule: Rule) -> list[int] | None:
        """The node of every stage in plan order by the rules of `planner.placement.place`."""
        layers = self._model.layers
        templates = [
            FilledTemplate(
                tuple(
                    Stage(*option, 1 if s else layers - len(structure) + 1)
                    for s, option in enumerate(structure)
                ),
                1,
                (1,) * replicas,
            )
            for structure, replicas in counts
        ]
        where = place(self._model, templates, self._composition, self._min_holders, rule=rule)
        if where is None:
            return None
        index = {node.name: i for i, node in enumerate(self._composition.nodes)}
        return [index[placed.node] for placed in where]

    def _by_layer(self, counts: Counts) -> list[int] | None:
        """The same, with stages that hold about the same layers on as few nodes as may be."""
        nodes = self._composition.nodes
        free = [node.gpus for node in nodes]
        stages = [
            (s / len(structure), option)
            for structure, replicas in counts
            for _ in range(replicas)
            for s, option in enumerate(structure)
        ]
        chosen = [-1] * len(stages)
        last = -1
        for _, minus_tp, index, gpu_type in sorted(
            (depth, -tp, index, gpu_type) for index, (depth, (gpu_type, tp)) in enumerate(stages)
        ):
            room = [
                node
                for node, left in enumerate(free)
                if nodes[node].gpu_type == gpu_type and left + minus_tp >= 0
            ]
            if not room:
                return None
            ranks = {n: (n != last, -free[n], -nodes[n].speed_factor, n) for n in room}
            last = min(room, key=ranks.__getitem__)
            free[last] += minus_tp
            chosen[index] = last
        return chosen


def _mirror(composition: Composition) -> dict[int, int]:
    """{node: another} that gives the slowest of equal size for the fastest, and so on."""
    nodes = composition.nodes
    alike: dict[tuple[str, int], list[int]] = {}
    for index in sorted(range(len(nodes)), key=lambda i: (nodes[i].speed_factor, i)):
        alike.setdefault((nodes[index].gpu_type, nodes[index].gpus), []).append(index)
    return {
        one: other
        for row in alike.values()
        if nodes[row[0]].speed_factor < nodes[row[-1]].speed_factor
        for one, other in zip(row, reversed(row), strict=True)
    }


def _drafts(counts: Counts, where: list[int]) -> Drafts:
    places = iter(where)
    return tuple(
        Draft(
            structure,
            0,
            (),
            (),
            tuple(tuple([next(places) for _ in structure]) for _ in range(replicas)),
        )
        for structure, replicas in counts
    )
