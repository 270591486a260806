"""First placements and fills of a set of templates: what a descent on few GPUs starts from.

Placed by replica as `planner.placement.place` rules, and by layer: stages of all templates that
hold about the same layers share nodes, so that their gradients are summed inside.  Filled, for
each micro-batch and configuration, by giving one layer after the other to the stage that is then
done first.
Invariant: a TP group never crosses a node, and no node holds more than its GPUs; every stage holds
at least one layer, and no more than fit.
Source: Heddle, section 5.3 (packing, layer split).   Legend: b micro-batch, n replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from math import ceil

from planner.cluster.composition import Composition
from planner.cost.memory import StageSlot
from planner.model.shape import ModelShape
from planner.placement.place import place
from planner.plans.plan import FilledTemplate, Stage
from planner.search.few_gpus.costs import CandidateCosts, slot_of
from planner.search.few_gpus.moves import Configurations
from planner.search.few_gpus.placed_candidate import Configuration, PlacedCandidate, PlacedTemplate
from planner.search.few_gpus.templates import Counts
from planner.search.fill import Structure

KEPT = 3  # fills of a template with one micro-batch

Fill = tuple[tuple[int, ...], tuple[Configuration, ...]]  # layers and configurations of each stage


def first_placements(
    counts: Counts, model: ModelShape, composition: Composition, min_holders: int
) -> Iterator[PlacedCandidate]:
    """Templates that are placed and not filled yet, each placement once.

    Above one holder, copies of the same layers go to different nodes where they can.
    """
    found = (
        _by_replica(counts, model, composition, min_holders),
        _by_layer(counts, composition),
    )
    for where in dict.fromkeys(one for one in found if one):
        nodes = iter(where)
        yield tuple(
            PlacedTemplate(
                structure,
                0,
                (),
                (),
                tuple(tuple([next(nodes) for _ in structure]) for _ in range(replicas)),
            )
            for structure, replicas in counts
        )


def _by_replica(
    counts: Counts, model: ModelShape, composition: Composition, min_holders: int
) -> tuple[int, ...]:
    """The node of every stage in plan order; empty if there is no room."""
    templates = [
        FilledTemplate(
            tuple(
                Stage(gpu_type=kind, tp=tp, layers=1 if s else model.layers - len(structure) + 1)
                for s, (kind, tp) in enumerate(structure)
            ),
            1,
            (1,) * replicas,
        )
        for structure, replicas in counts
    ]
    index = {node.name: i for i, node in enumerate(composition.nodes)}
    where = place(model, templates, composition, min_holders)
    return tuple(index[placed.node] for placed in where or ())


def _by_layer(counts: Counts, composition: Composition) -> tuple[int, ...]:
    """The same, with stages that hold about the same layers on as few nodes as may be."""
    nodes = composition.nodes
    free = [node.gpus for node in nodes]
    stages = [
        (s / len(structure), option)
        for structure, replicas in counts
        for _ in range(replicas)
        for s, option in enumerate(structure)
    ]
    chosen = [-1] * len(stages)
    last = -1
    for index in sorted(range(len(stages)), key=lambda i: (stages[i][0], -stages[i][1][1], i)):
        _, (gpu_type, tp) = stages[index]
        room = [
            (node != last, -left, -nodes[node].speed_factor, node)
            for node, left in enumerate(free)
            if nodes[node].gpu_type == gpu_type and left >= tp
        ]
        if not room:
            return ()
        last = min(room)[-1]
        free[last] -= tp
        chosen[index] = last
    return tuple(chosen)


class FirstFills:
    """First fills of the templates of one search, found once each."""

    def __init__(
        self, costs: CandidateCosts, configurations: Configurations, sizes: Sequence[int]
    ) -> None:
        """Prepare for stages of these costs and configurations, and for these micro-batches."""
        self._costs, self._configurations, self._sizes = costs, configurations, sizes
        self._fills = cache(self._fills_of)

    def of(self, candidate: PlacedCandidate) -> Iterator[PlacedCandidate]:
        """A few fills of all templates with each micro-batch; none if a template does not fit."""
        pipelines = sum(len(one.where) for one in candidate)
        for b in self._sizes:
            rounds = ceil(self._costs.workload.global_batch / (b * pipelines))
            fills = [self._fills(one.structure, len(one.where), b, rounds) for one in candidate]
            if not all(fills):
                continue
            for rank in range(max(map(len, fills))):
                yield tuple(
                    one._replace(micro_batch=b, layers=layers, configurations=configurations)
                    for one, found in zip(candidate, fills, strict=True)
                    for layers, configurations in (found[min(rank, len(found) - 1)],)
                )

    def _fills_of(self, structure: Structure, replicas: int, b: int, rounds: int) -> list[Fill]:
        """Fills with one configuration of all stages, those of the fastest blocks that fit."""
        found: list[Fill] = []
        for configurations in self._ranked(structure, replicas, b):
            slots = [
                slot_of(option, b, len(structure) - s, s == 0, s + 1, own, replicas)
                for s, (option, own) in enumerate(zip(structure, configurations, strict=True))
            ]
            layers = self._split(slots, rounds) or self._split(slots, 1)
            if layers:
                found.append((layers, configurations))
            if len(found) == KEPT:
                break
        return found

    def _ranked(
        self, structure: Structure, replicas: int, b: int
    ) -> list[tuple[Configuration, ...]]:
        """One configuration for all stages that know it, in the order of their blocks' pace."""
        last = self._costs.workload.model.layers
        known = [self._configurations[option] for option in structure]

        def pace(chosen: tuple[Configuration, ...]) -> float:
            slots = (
                slot_of(option, b, 2, False, last, own, replicas)
                for option, own in zip(structure, chosen, strict=True)
            )
            return sum(1 / self._costs.stage(slot, 1).work_s for slot in slots)

        rows = {
            tuple(wanted if wanted in row else row[0] for row in known)
            for wanted in {one for row in known for one in row}
        }
        return sorted(rows, key=lambda chosen: (-pace(chosen), chosen))

    def _split(self, slots: Sequence[StageSlot], rounds: int) -> tuple[int, ...]:
        """Layers of each stage; empty if so many micro-batches do not fit with them."""
        layers = self._costs.workload.model.layers
        caps = [self._costs.most_layers(slot, min(rounds, slot.depth)) for slot in slots]
        if len(slots) > layers or min(caps) < 1 or sum(caps) < layers:
            return ()
        ends_s = [self._costs.stage(slot, 1).work_s for slot in slots]
        blocks_s = [
            self._costs.stage(slot, 2).work_s - one_s
            for slot, one_s in zip(slots, ends_s, strict=True)
        ]
        counts = [1] * len(slots)
        for _ in range(layers - len(slots)):
            open_ = [s for s, count in enumerate(counts) if count < caps[s]]
            s = min(open_, key=lambda s: ends_s[s] + blocks_s[s])
            counts[s] += 1
            ends_s[s] += blocks_s[s]
        return tuple(counts)
