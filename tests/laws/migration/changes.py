"""Random changes of plan: any templates and placement; nodes join, leave with notice or die."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st

from migration.layout import StateLayout, held_layout, needed_layout
from migration.transfer import Transfer, plan_transfer
from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from planner.plans.regions import Cuts, state_refinement
from tests.builders import MOE, moe_plans

MODEL = ModelShape(name="law", layers=3, hidden=8, heads=4, kv_heads=4, ffn=8, vocab=12)
TIED = replace(MODEL, name="tied", tied_head=True)
NODES = ("n0", "n1", "n2", "n3", "n4")
GPUS = 4


@dataclass(frozen=True)
class Member:
    """What migration knows of a member."""

    rank: int | None
    holds: int | None
    node: str
    gpu: int
    also_holds: int | None = None


@dataclass(frozen=True)
class Change:
    """From the plan of epoch 1 to a new one; nodes in `dead` are lost with their state."""

    old: Plan
    new: Plan
    dead: frozenset[str]
    model: ModelShape = MODEL

    @property
    def cuts(self) -> Cuts:
        return state_refinement([self.old, self.new])

    @property
    def members(self) -> tuple[Member, ...]:
        """New ranks in rank order, then those that leave."""
        old = {(seat.node, seat.gpu) for seat in RankMap.of(self.old).seats}
        held = {spot for spot in old if spot[0] not in self.dead}
        new = [(seat.node, seat.gpu) for seat in RankMap.of(self.new).seats]
        stay = tuple(
            Member(rank, 1 if spot in held else None, *spot) for rank, spot in enumerate(new)
        )
        return stay + tuple(Member(None, 1, *spot) for spot in sorted(held - set(new)))

    @property
    def held(self) -> StateLayout:
        return held_layout(self.model, self.members, {1: self.old}, self.cuts)

    @property
    def needed(self) -> StateLayout:
        return needed_layout(self.model, self.new, self.members, self.cuts)

    @property
    def node_of(self) -> tuple[str, ...]:
        return tuple(member.node for member in self.members)

    def transfer(self, message_bytes: int = 256, grain_bytes: int = 32) -> Transfer:
        """Small messages, so that pieces are cut and rounds are many."""
        return plan_transfer(
            self.held,
            self.needed,
            self.node_of,
            message_bytes=message_bytes,
            grain_bytes=grain_bytes,
        )


@st.composite
def plans(draw, nodes=NODES):
    """A plan of MODEL on some of the nodes, each with four GPUs."""
    free = {node: list(draw(st.permutations(range(GPUS)))) for node in draw(st.permutations(nodes))}
    templates, placement = [], []
    for _ in range(draw(st.integers(1, 2))):
        depth = draw(st.integers(1, min(MODEL.layers, len(nodes))))
        inner = st.sets(st.integers(1, MODEL.layers - 1), min_size=depth - 1, max_size=depth - 1)
        cuts = sorted(draw(inner))
        layers = [b - a for a, b in zip([0, *cuts], [*cuts, MODEL.layers], strict=True)]
        stages = tuple(
            Stage(gpu_type="a", tp=draw(st.sampled_from((1, 2, 4))), layers=count)
            for count in layers
        )
        replicas = 0
        for _ in range(draw(st.integers(1, 2))):
            placed = _place(stages, free, len(templates), replicas)
            if placed is None:
                break
            placement += placed
            replicas += 1
        if replicas:
            templates.append(FilledTemplate(stages, 1, (1,) * replicas))
    return Plan(tuple(templates), tuple(placement))


def _place(stages, free, template, replica):
    """Put every stage on the first node with room; None if one finds none."""
    taken = {node: list(gpus) for node, gpus in free.items()}
    placed = []
    for index, stage in enumerate(stages):
        node = next((node for node, gpus in taken.items() if len(gpus) >= stage.tp), None)
        if node is None:
            return None
        gpus, taken[node] = taken[node][: stage.tp], taken[node][stage.tp :]
        placed.append(PlacedStage(template, replica, index, node, tuple(gpus)))
    free.update(taken)
    return placed


@st.composite
def changes(draw, losses=False):
    """Two plans and the nodes that go; without `losses` leaving nodes still hand their state on."""
    gone = draw(st.sets(st.sampled_from(NODES), max_size=2))
    old = draw(plans())
    new = draw(plans(nodes=tuple(node for node in NODES if node not in gone)))
    return Change(old, new, frozenset(gone) if losses else frozenset())


@st.composite
def any_changes(draw):
    """Of a dense model, its head tied or not, or of one whose experts are tiled in any way.

    Old and new plan have any stage of ZeRO.
    """
    if draw(st.booleans()):
        found = replace(draw(changes()), model=draw(st.sampled_from((MODEL, TIED))))
    else:
        found = Change(draw(moe_plans()), draw(moe_plans()), frozenset(), MOE)
    before, after = draw(st.sampled_from((0, 1))), draw(st.sampled_from((0, 1)))
    return replace(found, old=found.old.with_zero(before), new=found.new.with_zero(after))


def whole_state(model=MODEL, seed=0):
    """{tensor name: (weight, exp_avg, exp_avg_sq)} of the whole model, any numbers."""
    generator = torch.Generator().manual_seed(seed)
    return {
        tensor.name: tuple(torch.randn(tensor.shape, generator=generator) for _ in range(3))
        for tensor in model_tensors(model)
    }


def cut(state, piece, model=MODEL):
    """The parts of a piece as views into the whole tensors; strided where TP cuts columns."""
    tensor = next(tensor for tensor in model_tensors(model) if tensor.name == piece.tensor)
    parts = state[piece.tensor]
    if tensor.experts:
        parts = tuple(p[piece.expert_start : piece.expert_stop] for p in parts)
    rows = piece.stop - piece.start
    return tuple(part.narrow(tensor.row_dim, piece.start, rows) for part in parts)
