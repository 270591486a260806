"""The bits of a token's sum over its experts, where everything else is exact.

Tokens and experts are whole numbers, so no product and no sum over ETP rounds in fp32.  The weights
of the routes are not: the sum of four weighted rows has other bits in another order.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from planner.model.experts import Routing
from planner.plans.ranks import RankMap
from tests.unit.worker.model.experts.tilings import MODEL, NAMES, RANKS, Leaving, plan_of, tilings
from worker.control.activity import Activity
from worker.device.device import CPU
from worker.engine.expert_place import expert_place
from worker.model.experts.mixture import visited
from worker.model.experts.products import Stack
from worker.model.experts.routing import Routes, route
from worker.model.parallel import TensorParallel
from worker.world.world import World, rank_sets

TOKENS, EXPERTS = 24, 4  # a token visits all experts, each in an order of its own
LARGEST = 3  # of the whole numbers


def experts() -> list[torch.Tensor]:
    """Gate, up and down of all experts."""
    draw = torch.Generator().manual_seed(7)
    shapes = (EXPERTS, 8, 6), (EXPERTS, 8, 6), (EXPERTS, 6, 8)
    return [torch.randint(-LARGEST, LARGEST + 1, shape, generator=draw).float() for shape in shapes]


def tokens_of(replica: int) -> tuple[torch.Tensor, Routes]:
    """What a replica computes, and its routes."""
    draw = torch.Generator().manual_seed(20 + replica)
    h = torch.randint(-LARGEST, LARGEST + 1, (TOKENS, 6), generator=draw).float()
    return h, route(torch.randn(TOKENS, EXPERTS, generator=draw), Routing(), EXPERTS)


def added(replica: int, slots: list[int]) -> torch.Tensor:
    """The weighted rows of each token, added in an order of its slots."""
    h, routes = tokens_of(replica)
    gate, up, down = experts()
    found = torch.zeros_like(h)
    for token in range(TOKENS):
        total = None
        for slot in slots:
            expert = routes.chosen[token, slot]
            wide = torch.relu(gate[expert] @ h[token]) * (up[expert] @ h[token])
            row = routes.weights[token, slot] * (down[expert] @ wide)
            total = row if total is None else total + row
        assert total is not None
        found[token] = total
    return found


def exact_tilings() -> list[tuple[int, int, int]]:
    """(TP, EP, ETP) where a token's rows are whole when they are added."""
    return [one for one in tilings() if one[0] == 1 or one[1:] != (1, one[0])]


def claims(rank: int, store: Any) -> dict[str, list[Any]]:
    """{tiling: [replica, what this rank's tokens got]}."""
    torch.set_num_threads(1)
    found = {}
    for epoch, (tp, ep, etp) in enumerate(exact_tilings()):
        plan = plan_of(tp, ep, etp)
        seat = RankMap.of(plan).seats[rank]
        world = World(store, epoch, rank, RANKS, rank_sets(MODEL, plan), Activity(), device=CPU)
        with contextlib.closing(Leaving(world)):
            group = TensorParallel(seat.tp, seat.slot, world.groups.get(seat.tp_ranks))
            group = group if seat.tp > 1 else TensorParallel()
            (block, runs), (part, parts) = seat.expert_block, seat.expert_part
            own = [
                whole.chunk(runs)[block].chunk(parts, dim=dim)[part].clone()
                for whole, dim in zip(experts(), (1, 1, 2), strict=True)
            ]
            assert len(own) == len(NAMES)
            h, routes = tokens_of(seat.pipeline.replica)
            stack = Stack(own[0], own[1], own[2], torch.relu)
            result = visited(h, routes, expert_place(seat, world), group, stack)
            found[f"{tp} {ep} {etp}"] = [seat.pipeline.replica, result.tolist()]
    return found
