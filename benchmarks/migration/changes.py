"""Random changes of plan on clusters of any size, as layouts: who holds and who needs what."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from migration.layout import StateLayout
from planner.model.shape import ModelShape
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from planner.plans.regions import regions_of, state_refinement
from planner.plans.state_rule import OWNED

PAPER_NODES = (3, 4, 4, 4, 4)  # GPUs of each node: 19 in all


@dataclass(frozen=True, eq=False)
class Change:
    """One change of plan; a member of it is a GPU of either plan."""

    held: StateLayout
    needed: StateLayout
    node_of: tuple[str, ...]


def change_between(model: ModelShape, old: Plan, new: Plan, lost: Sequence[str] = ()) -> Change:
    """From one plan to another; the GPUs of `lost` nodes hold nothing any more."""
    regions = regions_of(model, state_refinement([old, new]))
    before = {(seat.node, seat.gpu): seat for seat in RankMap.of(old).seats}
    before = {spot: seat for spot, seat in before.items() if spot[0] not in lost}
    after = {(seat.node, seat.gpu): seat for seat in RankMap.of(new).seats}
    spots = [*after, *(spot for spot in before if spot not in after)]

    def layout(seats: dict) -> StateLayout:
        members = [[seats[spot]] if spot in seats else [] for spot in spots]
        return StateLayout(regions, OWNED.masks(regions, members))

    return Change(layout(before), layout(after), tuple(node for node, _ in spots))


def random_plan(
    draw: random.Random, model: ModelShape, nodes: dict[str, int], most_tp: int, depth: int
) -> Plan:
    """Pipelines of up to `depth` stages of any TP degree, each on any nodes with room."""
    free = {node: list(range(gpus)) for node, gpus in nodes.items()}
    names = list(free)
    draw.shuffle(names)
    templates: list[FilledTemplate] = []
    placement: list[PlacedStage] = []
    while True:
        count = draw.randint(1, depth)
        degrees = [draw.choice([tp for tp in (1, 2, 4, 8) if tp <= most_tp]) for _ in range(count)]
        where = _room(free, names, degrees)
        if where is None:
            if templates:
                return Plan(tuple(templates), tuple(placement))
            continue
        cuts = sorted(draw.sample(range(1, model.layers), count - 1))
        layers = [b - a for a, b in zip([0, *cuts], [*cuts, model.layers], strict=True)]
        for stage, (node, tp) in enumerate(zip(where, degrees, strict=True)):
            gpus, free[node] = free[node][:tp], free[node][tp:]
            placement.append(PlacedStage(len(templates), 0, stage, node, tuple(gpus)))
        stages = tuple(
            Stage(gpu_type="a", tp=tp, layers=n) for tp, n in zip(degrees, layers, strict=True)
        )
        templates.append(FilledTemplate(stages, 1, (1,)))


def _room(
    free: dict[str, list[int]], names: Sequence[str], degrees: Sequence[int]
) -> list[str] | None:
    """A node with room for each stage; None if one finds none."""
    left = {node: len(gpus) for node, gpus in free.items()}
    found = []
    for tp in degrees:
        node = next((name for name in names if left[name] >= tp), None)
        if node is None:
            return None
        left[node] -= tp
        found.append(node)
    return found


def random_change(
    draw: random.Random, model: ModelShape, sizes: Sequence[int], most_tp: int, depth: int
) -> Change:
    """One node joins, leaves with notice or is lost, or only the plan changes."""
    nodes = {f"n{index}": size for index, size in enumerate(sizes)}
    one = draw.choice(sorted(nodes))
    without = {name: size for name, size in nodes.items() if name != one}
    kind = draw.choice(["join", "drain", "loss", "plan"])
    old = random_plan(draw, model, without if kind == "join" else nodes, most_tp, depth)
    new = random_plan(draw, model, without if kind in ("drain", "loss") else nodes, most_tp, depth)
    change = change_between(model, old, new, [one] if kind == "loss" else [])
    held = next(iter(change.held.masks.values()))
    if not held.any(axis=0).all():  # state is lost: no transfer, draw again
        return random_change(draw, model, sizes, most_tp, depth)
    return change


def uniform_plan(model: ModelShape, gpus: int, tp: int, depth: int, *, per_node: int = 8) -> Plan:
    """Equal pipelines of equal stages on consecutive GPUs."""
    bounds = [index * model.layers // depth for index in range(depth + 1)]
    stages = tuple(Stage(gpu_type="a", tp=tp, layers=b - a) for a, b in pairwise(bounds))
    replicas, gpu, placement = gpus // (tp * depth), 0, []
    for replica in range(replicas):
        for stage in range(depth):
            node, first = divmod(gpu, per_node)
            where = tuple(range(first, first + tp))
            placement.append(PlacedStage(0, replica, stage, f"n{node}", where))
            gpu += tp
    return Plan((FilledTemplate(stages, 1, (1,) * replicas),), tuple(placement))
