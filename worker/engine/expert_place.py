"""Where the experts of a rank's stage are: the groups through which its tokens travel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from planner.plans.ranks import Seat
from worker.model.experts.exchange import Place
from worker.model.experts.mixture import ExpertPlace
from worker.model.model import Layer, MoeBlock
from worker.world.group import Group, Ranks


class Peers(Protocol):
    """What it asks of a world; see `worker.world.world.World`."""

    groups: dict[Ranks, Group]

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The numbers of a tensor that peers had a part in."""


def expert_place(seat: Seat, world: Peers) -> ExpertPlace:
    """The place of a rank, whose world has a group for each set that it needs."""
    if not seat.pipeline.template.stages[seat.stage].is_tiled:
        return ExpertPlace()
    ep, etp = seat.expert_ranks

    def place(ranks: Ranks) -> Place | None:
        return Place(world.groups[ranks], ranks.index(seat.rank)) if len(ranks) > 1 else None

    return ExpertPlace(is_tiled=True, ep=place(ep), etp=place(etp), host=world.host)


def place_experts(layers: Iterable[Layer], seat: Seat, world: Peers) -> None:
    """Tell the layers of a stage where their experts are."""
    place = expert_place(seat, world)
    for layer in layers:
        if isinstance(layer, MoeBlock):
            layer.place = place
