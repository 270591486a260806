"""Tokens that visit experts under every tiling of four or eight ranks, beside a loop over all.

`claims` runs on each of four ranks, and `claims_of_eight` on each of eight: how far its results and
gradients are from those of the loop.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from planner.model.experts import Experts, Routing
from planner.model.shape import ModelShape
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from worker.control.activity import Activity
from worker.device.device import CPU
from worker.engine.expert_place import expert_place
from worker.model.experts.mixture import visited
from worker.model.experts.products import Stack
from worker.model.experts.routing import Routes, route
from worker.model.parallel import TensorParallel
from worker.world.group import Group
from worker.world.world import World, rank_sets

RANKS, MANY = 4, 8
MODEL = ModelShape(
    name="tiled",
    layers=1,
    hidden=6,
    heads=4,
    kv_heads=4,
    ffn=8,
    vocab=8,
    head_width=2,
    experts=Experts(count=8, per_token=2, ffn=8),
)
TOKENS = (5, 0, 7, 1, 3, 2, 0, 6)  # of each replica; of some none visits an expert
EMPTY = 3  # tokens of an empty micro-batch
NAMES = ("experts_gate", "experts_up", "experts_down")


def tilings(ranks: int = RANKS) -> list[tuple[int, int, int]]:
    """(TP, EP, ETP) of every way to divide the ranks."""
    degrees = [degree for degree in (1, 2, 4, 8) if degree <= ranks]
    return [
        (tp, ep, etp) for tp in degrees for ep in degrees for etp in degrees if ep * etp <= ranks
    ]


def plan_of(tp: int, ep: int, etp: int, ranks: int = RANKS) -> Plan:
    """One stage on all ranks."""
    stage = Stage(gpu_type="demo-fast", tp=tp, layers=1, ep=ep, etp=etp)
    count = ranks // tp
    spots = (
        PlacedStage(0, replica, 0, "a", tuple(range(replica * tp, (replica + 1) * tp)))
        for replica in range(count)
    )
    return Plan((FilledTemplate((stage,), 1, (1,) * count),), tuple(spots))


def whole() -> dict[str, torch.Tensor]:
    """The experts and the router, fp64."""
    draw = torch.Generator().manual_seed(3)
    shapes = {"router": (8, 6), "experts_gate": (8, 8, 6), "experts_up": (8, 8, 6)}
    shapes["experts_down"] = (8, 6, 8)
    return {
        name: torch.randn(shape, generator=draw, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def tokens_of(replica: int) -> torch.Tensor:
    """What a replica computes, fp64; an empty micro-batch has numbers too, which nobody visits."""
    draw = torch.Generator().manual_seed(10 + replica)
    return torch.randn(TOKENS[replica] or EMPTY, 6, generator=draw, dtype=torch.float64)


def looped(replicas: int) -> tuple[list[torch.Tensor], list[torch.Tensor], dict[str, Any]]:
    """Results and input gradients of each replica, and gradients of the weights, by a loop."""
    weights = {name: one.requires_grad_() for name, one in whole().items()}
    inputs, outputs = [], []
    for replica in range(replicas):
        h = tokens_of(replica).requires_grad_()
        inputs.append(h)
        routes = route(h @ weights["router"].T, Routing(), 2)
        total = h * 0.0
        for token in range(TOKENS[replica]):
            for visit in range(2):
                gate, up, down = (weights[n][routes.chosen[token, visit]] for n in NAMES)
                wide = torch.relu(gate @ h[token]) * (up @ h[token])
                total[token] += routes.weights[token, visit] * (down @ wide)
        outputs.append(total)
        (total * slope(total)).sum().backward()
    return outputs, inputs, weights


def slope(of: torch.Tensor) -> torch.Tensor:
    """A gradient that differs from place to place."""
    return torch.arange(1.0, of.numel() + 1, dtype=of.dtype).view(of.shape) / of.numel()


def claims(rank: int, store: Any) -> dict[str, Any]:
    """{tiling: {what: largest difference}} of this rank of four."""
    return _of_tilings(rank, store, RANKS)


def claims_of_eight(rank: int, store: Any) -> dict[str, Any]:
    """Likewise of eight."""
    return _of_tilings(rank, store, MANY)


def _of_tilings(rank: int, store: Any, ranks: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    return {
        f"{tp} {ep} {etp}": _differences(rank, store, index, plan_of(tp, ep, etp, ranks))
        for index, (tp, ep, etp) in enumerate(tilings(ranks))
    }


def _differences(rank: int, store: Any, epoch: int, plan: Plan) -> dict[str, Any]:
    seat = RankMap.of(plan).seats[rank]
    replica, replicas = seat.pipeline.replica, plan.templates[0].replicas
    world = World(store, epoch, rank, plan.gpus, rank_sets(MODEL, plan), Activity(), device=CPU)
    with contextlib.closing(Leaving(world)):
        tp = TensorParallel(seat.tp, seat.slot, world.groups.get(seat.tp_ranks))
        tp = tp if seat.tp > 1 else TensorParallel()
        place = expert_place(seat, world)
        weights = whole()
        own = _own_experts(seat, weights)
        router = weights["router"].requires_grad_()
        x = tokens_of(replica).requires_grad_()
        h = x * 1.0
        routes = route(h @ router.T, Routing(), 2)
        stack = Stack(own[0], own[1], own[2], torch.relu)
        is_empty = not TOKENS[replica]
        if is_empty and not place.is_tiled:
            return {}  # of dense layers and plain tilings an empty micro-batch is one of zeros
        found = visited(h, routes, place, tp, stack, is_empty=is_empty)
        (found * slope(found) * (not is_empty)).sum().backward()
        return _compared(seat, plan, found, x, router, own, looped(replicas))


def _own_experts(seat: Any, weights: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """This rank's box of each weight."""
    (block, ep), (part, etp) = seat.expert_block, seat.expert_part
    found = []
    for name, dim in zip(NAMES, (1, 1, 2), strict=True):
        box = weights[name].chunk(ep)[block].chunk(etp, dim=dim)[part]
        found.append(box.clone().requires_grad_())
    return found


def _compared(
    seat: Any, plan: Plan, found: Any, x: Any, router: Any, own: Any, expected: Any
) -> dict[str, Any]:
    outputs, inputs, _ = expected
    replica = seat.pipeline.replica

    def apart(one: torch.Tensor, other: torch.Tensor) -> float:
        return (one - other).abs().max().item()

    (block, ep), (part, etp) = seat.expert_block, seat.expert_part
    return {
        "result": apart(found, outputs[replica]),
        "input": apart(x.grad, inputs[replica].grad),
        "router": router.grad.tolist(),
        "experts": [one.grad.tolist() for one in own],
        "box": [block, ep, part, etp],
        "replica": replica,
        "slot": seat.slot,
    }


TRAVELLERS = 32  # tokens of each replica, whose visits keep all experts equally busy


def traffic(rank: int, store: Any) -> dict[str, Any]:
    """{tiling: bytes of rows that this rank sends to others, forward and backward}.

    An all-reduce counts as the ring that it is.
    """
    torch.set_num_threads(1)
    found = {}
    for index, (tp, ep, etp) in enumerate(tilings()):
        with pytest.MonkeyPatch.context() as patch:
            found[f"{tp} {ep} {etp}"] = _sent(rank, store, index, plan_of(tp, ep, etp), patch)
    return found


def _sent(rank: int, store: Any, epoch: int, plan: Plan, patch: Any) -> list[int]:
    seat, sent = RankMap.of(plan).seats[rank], [0]
    send = Group.all_to_all_

    def counted(group: Any, received: Any, given: Any, rows_from: Any, rows_to: Any) -> None:
        rows = sum(rows_to) - rows_to[group.ranks.index(rank)]
        if given.dtype == torch.float64 and given.shape[-1] == MODEL.hidden:
            sent[-1] += rows * MODEL.hidden * given.element_size()
        send(group, received, given, rows_from, rows_to)

    reduce = Group.all_reduce_

    def ring(group: Any, tensor: Any, op: Any = "sum") -> None:
        if tensor.dtype == torch.float64 and tensor.shape[-1] == MODEL.hidden:
            size = len(group.ranks)
            sent[-1] += tensor.numel() * tensor.element_size() * 2 * (size - 1) / size
        reduce(group, tensor, op)

    patch.setattr(Group, "all_to_all_", counted)
    patch.setattr(Group, "all_reduce_", ring)
    world = World(store, epoch, rank, RANKS, rank_sets(MODEL, plan), Activity(), device=CPU)
    with contextlib.closing(Leaving(world)):
        tp = TensorParallel(seat.tp, seat.slot, world.groups.get(seat.tp_ranks))
        tp = tp if seat.tp > 1 else TensorParallel()
        own = _own_experts(seat, whole())
        h = torch.ones(TRAVELLERS, MODEL.hidden, dtype=torch.float64, requires_grad=True) * 1.0
        numbers = torch.arange(2 * TRAVELLERS).view(TRAVELLERS, 2) % 8
        weights = torch.ones(TRAVELLERS, 2, dtype=torch.float64, requires_grad=True)
        routes = Routes(numbers, weights, torch.ones(TRAVELLERS, 8))
        place = expert_place(seat, world)
        stack = Stack(own[0], own[1], own[2], torch.relu)
        out = visited(h, routes, place, tp, stack)
        sent.append(0)
        out.sum().backward()
    return sent


class Leaving:
    """A world that is left where it is closed."""

    def __init__(self, world: World) -> None:
        self._world = world

    def close(self) -> None:
        """Leave it, with the others."""
        self._world.leave(wait=True)
