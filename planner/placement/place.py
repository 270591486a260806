"""Put the TP groups of a plan on nodes.

Invariants: a TP group never crosses a node; no GPU is given twice; equal inputs, equal placements.
Rules, in order: a replica stays on one node where it can (or, if asked, the replicas of a stage);
where the state must live on several nodes, its copies go to different ones; with a current plan,
pieces stay where they are; a node that fits exactly is taken before a larger one is carved; faster
nodes first; ties go by name.  A replica that finds no room has its TP groups placed before all
others, and placement begins anew: squeaky wheel optimization (Joslin and Clements, 1999).
Source: Heddle, section 5.3 (packing).  Any GPUs of a node form a TP group, so only counts matter.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from planner.cluster.composition import Composition, Node
from planner.model.shape import ModelShape
from planner.placement.free_nodes import FreeNodes
from planner.plans.movement import shared_numel
from planner.plans.pieces import holders_min
from planner.plans.plan import FilledTemplate, PlacedStage, Plan
from planner.plans.ranks import Pipeline, RankMap, Seat

Rule = Literal["by replica", "by stage", "by tiling"]
Replica = tuple[int, int]  # template, replica
Slot = tuple[int, int, int]  # template, replica, stage
Room = Mapping[tuple[str, int], int]
ROUNDS = 8  # of replicas that are blocked, at most, before all go by the size of their TP groups


def room_of(composition: Composition) -> Room:
    """How many GPUs TP groups of each degree could take: {(GPU type, TP degree): GPUs}."""
    room: Counter[tuple[str, int]] = Counter()
    largest = composition.largest_gpus
    for node in composition.nodes:
        for tp in range(1, largest[node.gpu_type] + 1):
            room[node.gpu_type, tp] += node.gpus // tp * tp
    return room


def can_pack(groups: Mapping[tuple[str, int], int], room: Room) -> bool:
    """Whether that many TP groups fit on the nodes.

    Exact where the degrees divide each other: what larger groups take counts against smaller ones.

    Args:
        groups: number of groups by (GPU type, TP degree).
        room: of the nodes.
    """
    taken: dict[str, int] = {}
    for option in sorted(groups, key=_degree, reverse=True):
        gpu_type, tp = option
        taken[gpu_type] = taken.get(gpu_type, 0) + groups[option] * tp
        if taken[gpu_type] > room.get(option, 0):
            return False
    return True


def _degree(option: tuple[str, int]) -> int:
    return option[1]


@dataclass(frozen=True, slots=True)
class _Held:
    """The current plan's seats, by node."""

    model: ModelShape
    seats: dict[str, list[Seat]]

    def kept(self, node: str, layers: range, tp: int, gpus: int) -> int:
        """About how many layer shares of a stage (or replica) the node holds already."""
        held = 0.0
        for seat in self.seats.get(node, ()):
            both = min(layers.stop, seat.layers.stop) - max(layers.start, seat.layers.start)
            held += max(0, both) / max(seat.tp, tp)
        return round(min(held, float(len(layers))) * 1000 * min(1, gpus))


def place(
    model: ModelShape,
    templates: Sequence[FilledTemplate],
    composition: Composition,
    min_holders: int = 1,
    current: Plan | None = None,
    *,
    rule: Rule = "by replica",
) -> tuple[PlacedStage, ...] | None:
    """Give every stage of every replica a node and GPUs, in plan order; None if they do not fit.

    Args:
        model: whose layers the stages hold.
        templates: filled; every replica is placed.
        composition: the nodes.
        min_holders: above 1, copies of the same layers go to different nodes where they can.
        current: the plan that runs now, if any; its nodes may be gone.
        rule: whether a node takes many stages of one replica, or the same stage of many, so that
            expert parallelism stays inside nodes; `by tiling`: the latter for the templates that
            spread experts alone.
    """
    held = None
    if current is not None:
        by_node: dict[str, list[Seat]] = {}
        for seat in RankMap.of(current).seats:
            by_node.setdefault(seat.node, []).append(seat)
        held = _Held(model, by_node)
    staged = {t for t, template in enumerate(templates) if _is_by_stage(template, rule)}
    others = set(range(len(templates))) - staged
    squeezed: list[Replica] = []
    for _ in range(ROUNDS):
        choice = _Choice(templates, FreeNodes.of(composition), {}, min_holders, held)
        if not choice.by_stage(staged):
            break
        blocked = choice.largest_first(squeezed, least=2) or choice.by_replica(others, squeezed)
        if blocked is None:
            return _with_gpus(model, templates, composition, choice.chosen, held)
        if blocked in squeezed:
            break
        squeezed.append(blocked)
    choice = _Choice(templates, FreeNodes.of(composition), {}, min_holders, held)
    everyone = _replicas(templates, set(range(len(templates))))
    if choice.largest_first(everyone, least=1) is not None:
        return None
    return _with_gpus(model, templates, composition, choice.chosen, held)


def _is_by_stage(template: FilledTemplate, rule: Rule) -> bool:
    """Whether nodes take the same stage of many of its replicas."""
    return rule == "by stage" or (rule == "by tiling" and template.is_tiled)


def _replicas(templates: Sequence[FilledTemplate], which: Set[int]) -> list[tuple[int, int]]:
    """(template, replica) of some templates, those that are hardest to place first."""
    pairs = [(t, r) for t in which for r in range(templates[t].replicas)]
    hardest = [(-max(s.tp for s in t.stages), -t.gpus) for t in templates]
    return sorted(pairs, key=lambda pair: (*hardest[pair[0]], *pair))


@dataclass(frozen=True, slots=True)
class _Choice:
    """The nodes that are chosen so far, and what is left of them.

    Attributes:
        templates: filled, whose stages are placed.
        nodes: with the GPUs that nobody has taken.
        chosen: node of each stage so far.
        min_holders: above 1, copies of the same layers are counted by node.
        held: seats of the current plan, if any.
    """

    templates: Sequence[FilledTemplate]
    nodes: FreeNodes
    chosen: dict[Slot, str]
    min_holders: int
    held: _Held | None

    def by_replica(self, which: Set[int], squeezed: Sequence[Replica]) -> Replica | None:
        """Choose a node for every stage of some templates, replica by replica.

        Those that are squeezed come last, as they have their TP groups: stages of one GPU fit
        anywhere.  Returns the replica for which nothing is left, if any.
        """
        ordered = [pair for pair in _replicas(self.templates, which) if pair not in squeezed]
        for t, r in ordered:
            if not (self._whole_replica(t, r) or self._replica_by_stage(t, r)):
                return t, r
        for t, r in squeezed:
            if not self._replica_by_stage(t, r):
                return t, r
        return None

    def largest_first(self, replicas: Sequence[Replica], least: int) -> Replica | None:
        """Choose nodes for TP groups of `least` GPUs or more, the largest first, to share nodes.

        Where nothing else is placed, that fits whenever anything does.
        Returns the replica that does not fit, if any.
        """
        groups = [
            (-stage.tp, t, r, s)
            for t, r in replicas
            for s, stage in enumerate(self.templates[t].stages)
            if stage.tp >= least
        ]
        for minus_tp, t, r, s in sorted(groups):
            mates = (self.chosen.get((t, r, other)) for other in (s - 1, s + 1))
            kind = self.templates[t].stages[s].gpu_type
            node = self.nodes.best(kind, -minus_tp, -minus_tp, mates)
            if node is None:
                return t, r
            cuts = self.templates[t].layer_bounds()
            self._take(node, -minus_tp, range(cuts[s], cuts[s + 1]))
            self.chosen[t, r, s] = node
        return None

    def by_stage(self, which: Set[int]) -> bool:
        """Choose a node for every stage of some templates; whether they fit.

        Stage by stage: its replicas fill one node after the other.
        """
        hardest = [(-max(s.tp for s in t.stages), -t.gpus * t.replicas) for t in self.templates]
        for t in sorted(which, key=lambda index: (*hardest[index], index)):
            for s, stage in enumerate(self.templates[t].stages):
                previous: str | None = None
                for r in range(self.templates[t].replicas):
                    wanted = (self.templates[t].replicas - r) * stage.tp
                    previous = self.nodes.best(stage.gpu_type, stage.tp, wanted, (previous,))
                    if previous is None:
                        return False
                    self.nodes.take(previous, stage.tp)
                    self.chosen[t, r, s] = previous
        return True

    def _whole_replica(self, t: int, r: int) -> bool:
        """Put a replica of one GPU type on one node; whether one has room for it."""
        template = self.templates[t]
        first = template.stages[0]
        if any(stage.gpu_type != first.gpu_type for stage in template.stages):
            return False
        cuts = template.layer_bounds()
        layers = range(cuts[0], cuts[-1])
        node = self._best(first.gpu_type, template.gpus, template.gpus, layers, first.tp, None)
        if node is None:
            return False
        self._take(node, template.gpus, layers)
        self.chosen.update({(t, r, s): node for s in range(len(template.stages))})
        return True

    def _replica_by_stage(self, t: int, r: int) -> bool:
        """Put each stage of a replica that has no node yet on one; whether there was room."""
        template = self.templates[t]
        cuts = template.layer_bounds()
        previous: str | None = None
        for s, stage in enumerate(template.stages):
            if (t, r, s) in self.chosen:
                previous = self.chosen[t, r, s]
                continue
            layers, gpus = range(cuts[s], cuts[s + 1]), _run_gpus(template, s)
            previous = self._best(stage.gpu_type, stage.tp, gpus, layers, stage.tp, previous)
            if previous is None:
                return False
            self._take(previous, stage.tp, layers)
            self.chosen[t, r, s] = previous
        return True

    def _best(
        self, kind: str, least: int, gpus: int, layers: range, tp: int, previous: str | None
    ) -> str | None:
        """The node for a stage or a replica of these layers; None if none has room."""
        min_holders, nodes, held = self.min_holders, self.nodes, self.held
        if min_holders == 1 and held is None:
            return nodes.best(kind, least, gpus, (previous,))
        room = nodes.with_room(kind, least)
        wanted = min(gpus, max((node.gpus for node in room), default=0))

        def rank(node: Node) -> tuple[object, ...]:
            free = nodes.free[node.name]
            return (
                nodes.copies(node.name, layers) if min_holders > 1 else 0,
                node.name != previous,
                -held.kept(node.name, layers, tp, gpus) if held else 0,
                free < wanted,
                abs(free - wanted),
                -node.speed_factor,
                node.name,
            )

        return min(room, key=rank).name if room else None

    def _take(self, node: str, gpus: int, layers: range) -> None:
        self.nodes.take(node, gpus, layers if self.min_holders > 1 else ())


def _run_gpus(template: FilledTemplate, first: int) -> int:
    """GPUs of a stage and of those behind it that are of the same type without a break."""
    gpus = 0
    for stage in template.stages[first:]:
        if stage.gpu_type != template.stages[first].gpu_type:
            break
        gpus += stage.tp
    return gpus


def _with_gpus(
    model: ModelShape,
    templates: Sequence[FilledTemplate],
    composition: Composition,
    chosen: Mapping[Slot, str],
    held: _Held | None,
) -> tuple[PlacedStage, ...]:
    """Give each rank a GPU of its node: the one that holds most of what it needs, else the next."""
    slots = sorted(chosen)
    free = {node.name: list(range(node.gpus)) for node in composition.nodes}
    given: dict[tuple[Slot, int], int] = {}
    if held is not None:
        wishes = []
        for slot in slots:
            for seat in _seats_of(templates, slot, chosen[slot]):
                for old in held.seats.get(chosen[slot], ()):
                    if old.gpu in free[chosen[slot]]:
                        shared = shared_numel(model, seat, old)
                        wishes.append((-shared, slot, seat.slot, old.gpu))
        for minus_shared, slot, index, gpu in sorted(wishes):
            if minus_shared and (slot, index) not in given and gpu in free[chosen[slot]]:
                given[slot, index] = gpu
                free[chosen[slot]].remove(gpu)
    placed = []
    for slot in slots:
        t, r, s = slot
        gpus = tuple(
            given[slot, index] if (slot, index) in given else free[chosen[slot]].pop(0)
            for index in range(templates[t].stages[s].tp)
        )
        placed.append(PlacedStage(t, r, s, chosen[slot], gpus))
    return tuple(placed)


def _seats_of(templates: Sequence[FilledTemplate], slot: Slot, node: str) -> list[Seat]:
    """The seats of one stage, as far as what they hold depends on it."""
    t, r, s = slot
    template = templates[t]
    ranks = tuple(tuple(range(stage.tp)) for stage in template.stages)
    pipeline = Pipeline(
        template_index=t,
        replica=r,
        template=template,
        ranks=ranks,
        nodes=(node,) * len(ranks),
        first_sample=0,
    )
    return [
        Seat(rank=index, pipeline=pipeline, stage=s, slot=index, node=node, gpu=0)
        for index in range(template.stages[s].tp)
    ]


def holders_by_layer(model: ModelShape, plan: Plan) -> int:
    """The smallest number of nodes on which any piece has an owner.

    A TP group never crosses a node, so every piece of a layer lives on the same nodes, but for
    tiled experts: equal to `planner.plans.pieces.holders_min`, without the table.  With ZeRO 1 the
    replicas of a template have other pieces, and the table is asked.
    """
    if plan.zero:
        return holders_min(model, plan)
    nodes: dict[tuple[int, int], list[str]] = defaultdict(list)  # replica by replica
    for placed in plan.placement:
        nodes[placed.template, placed.stage].append(placed.node)
    stages: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for t, template in enumerate(plan.templates):
        for s, (start, stop) in enumerate(pairwise(template.layer_bounds())):
            for layer in range(start, stop):
                stages[layer].append((t, s))
    alike = {tuple(where) for where in stages.values()}  # layers between two cuts of any template
    found = min(len(set().union(*(nodes[where] for where in row))) for row in alike)
    if not any(template.is_tiled for template in plan.templates):
        return found
    routed = {tuple(where) for layer, where in stages.items() if model.kind(layer) == "moe_block"}
    return min([found, *(_expert_holders(plan, row, nodes) for row in routed)])


def _expert_holders(
    plan: Plan, row: tuple[tuple[int, int], ...], nodes: Mapping[tuple[int, int], Sequence[str]]
) -> int:
    """The smallest number of nodes that a share of the experts of some stages lives on."""
    stages = [plan.templates[t].stages[s] for t, s in row]
    blocks = math.lcm(*(stage.ep for stage in stages))
    parts = math.lcm(*(stage.expert_tp for stage in stages))
    found = defaultdict[tuple[int, int], set[str]](set)
    for where, stage in zip(row, stages, strict=True):
        for device in range(len(nodes[where]) * stage.tp):
            block, part = device // stage.expert_tp % stage.ep, device % stage.expert_tp
            for b in range(block * blocks // stage.ep, (block + 1) * blocks // stage.ep):
                for p in range(
                    part * parts // stage.expert_tp, (part + 1) * parts // stage.expert_tp
                ):
                    found[b, p].add(nodes[where][device // stage.tp])
    return min(len(names) for names in found.values())
