"""A plan of a baseline on its GPUs, in words wide enough for all of them.

A grid is a set of replicas that share their cuts; a stage of it is a list of TP groups.  Where
every replica keeps its own group in every stage, a grid is what Heddle's plans say too.  DP that
differs by stage, or a batch cut unevenly inside a stage, is more than they say.
Invariant: `as_plan` changes no decision and no GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from planner.cluster.composition import Composition
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage

Gpu = tuple[str, int]  # node, index of the GPU on it


@dataclass(frozen=True, slots=True)
class Group:
    """One TP group of a stage."""

    gpu_type: str
    gpus: tuple[Gpu, ...]  # their number is the TP degree
    samples: int  # of a micro-batch that it trains

    @property
    def tp(self) -> int:
        """The TP degree."""
        return len(self.gpus)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that it stands on, sorted."""
        return tuple(sorted({node for node, _ in self.gpus}))


@dataclass(frozen=True, slots=True)
class GridStage:
    """A stage of all replicas of a grid."""

    blocks: int  # embedding and head are not counted
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Replicas that share their cuts; `micro_batches` has M of each, or one M of all of them."""

    stages: tuple[GridStage, ...]
    micro_batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole plan."""

    grids: tuple[Grid, ...]
    recompute: str = "none"  # of every stage

    @property
    def gpus(self) -> frozenset[Gpu]:
        """All GPUs that it uses."""
        return frozenset(
            gpu
            for grid in self.grids
            for stage in grid.stages
            for group in stage.groups
            for gpu in group.gpus
        )

    def beyond_plans(self) -> str:
        """What it says and Heddle's plans cannot, in words; empty where they say the same."""
        for grid in self.grids:
            if len({len(stage.groups) for stage in grid.stages}) > 1:
                return "DP differs by stage"
            columns = zip(*(stage.groups for stage in grid.stages), strict=True)
            if any(len({group.samples for group in column}) > 1 for column in columns):
                return "replicas of a stage take unequal micro-batches"
            if any(len(group.nodes) > 1 for stage in grid.stages for group in stage.groups):
                return "a TP group crosses nodes"
            if any(stage.blocks < 1 for stage in grid.stages):
                return "a stage has no block"
        return ""

    def as_plan(self) -> Plan:
        """The same decisions on the same GPUs as a plan of Heddle.

        Raises:
            ValueError: it says more than a plan can.
        """
        beyond = self.beyond_plans()
        if beyond:
            raise ValueError(beyond)
        pipelines = [pipeline for grid in self.grids for pipeline in _pipelines(grid)]
        templates, placement = [], []
        alike = groupby(sorted(pipelines, key=lambda one: one[0]), key=lambda one: one[0])
        for t, ((stages, samples), members) in enumerate(alike):
            rows = list(members)
            filled = tuple(
                Stage(gpu_type=kind, tp=tp, layers=blocks, recompute=self.recompute)
                for kind, tp, blocks in stages
            )
            counts = tuple(count for _, count, _ in rows)
            templates.append(FilledTemplate(filled, samples, counts))
            placement += [
                PlacedStage(t, r, s, group.gpus[0][0], tuple(gpu for _, gpu in group.gpus))
                for r, (_, _, groups) in enumerate(rows)
                for s, group in enumerate(groups)
            ]
        return Plan(tuple(templates), tuple(placement))

    @staticmethod
    def of_plan(plan: Plan) -> Layout:
        """A plan of Heddle whose stages recompute alike and tile no experts, in these words."""
        where = {(p.template, p.replica, p.stage): p for p in plan.placement}
        grids = []
        for t, template in enumerate(plan.templates):
            stages = []
            for s, stage in enumerate(template.stages):
                placed = [where[t, r, s] for r in range(template.replicas)]
                groups = tuple(
                    Group(
                        stage.gpu_type,
                        tuple((one.node, gpu) for gpu in one.gpus),
                        template.micro_batch,
                    )
                    for one in placed
                )
                stages.append(GridStage(stage.layers, groups))
            grids.append(Grid(tuple(stages), template.micro_batches))
        return Layout(tuple(grids), plan.templates[0].stages[0].recompute)


_Shape = tuple[tuple[tuple[str, int, int], ...], int]  # (type, TP, blocks) of stages; micro-batch
_Pipeline = tuple[_Shape, int, tuple[Group, ...]]  # its shape, M, and its groups


def _pipelines(grid: Grid) -> Iterable[_Pipeline]:
    for r in range(len(grid.stages[0].groups)):
        groups = tuple(stage.groups[r] for stage in grid.stages)
        stages = tuple(
            (group.gpu_type, group.tp, stage.blocks)
            for group, stage in zip(groups, grid.stages, strict=True)
        )
        yield (stages, groups[0].samples), grid.micro_batches[r], groups


def listed_gpus(composition: Composition, types: Sequence[str] = ()) -> list[tuple[str, Gpu]]:
    """(GPU type, GPU) of all GPUs, type by type in that order, larger nodes of a type first."""
    order = list(types) or list(composition.gpu_types)
    nodes = sorted(composition.nodes, key=lambda n: (order.index(n.gpu_type), -n.gpus, n.name))
    return [(node.gpu_type, (node.name, gpu)) for node in nodes for gpu in range(node.gpus)]


def carve(
    composition: Composition, asked: Sequence[tuple[str, int]]
) -> list[tuple[Gpu, ...]] | None:
    """GPUs for each TP group (GPU type, TP degree), each inside a node; None if they do not fit.

    Larger groups choose first, each the first node of its type with room.
    """
    left: dict[str, list[tuple[str, list[int]]]] = {}
    for node in composition.nodes:
        left.setdefault(node.gpu_type, []).append((node.name, list(range(node.gpus))))
    found: list[tuple[Gpu, ...]] = [()] * len(asked)
    for index in sorted(range(len(asked)), key=lambda i: -asked[i][1]):
        gpu_type, tp = asked[index]
        nodes = left.get(gpu_type, [])
        while nodes and not nodes[0][1]:
            nodes.pop(0)
        for name, free in nodes:
            if len(free) >= tp:
                found[index] = tuple((name, free.pop(0)) for _ in range(tp))
                break
        else:
            return None
    return found


def shares_of(total: int, parts: int) -> tuple[int, ...]:
    """A whole number cut as evenly as it can be, larger parts first."""
    return tuple(total // parts + (index < total % parts) for index in range(parts))
