"""Gradient sum and gradient norm across unequal pipelines, driven by the piece table.

Stages of different templates hold different layers in different cuts, so "the data-parallel group
of this stage" does not exist.  Each piece has its own contributors; pieces with the same ones
share one flat bucket, so a step costs as many collectives as there are distinct rank sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from planner.model.shape import ModelShape
from planner.plans.pieces import Piece, holders
from planner.plans.plan import Plan
from planner.plans.ranks import Seat
from worker.world.group import Ranks
from worker.world.world import World, leads


def step_norm(loss: float, norm: float) -> float:
    """The gradient norm of a step; NaN unless loss and norm are both finite.

    So that whoever learns the norm alone, after a loss of peers, skips what the others skipped.
    """
    return norm if math.isfinite(loss) and math.isfinite(norm) else math.nan


class GradientSync:
    """The gradient sum of one rank in one epoch.

    Attributes:
        num_pieces: slots that the norm of the whole plan needs, one a piece.
    """

    def __init__(
        self,
        model: ModelShape,
        plan: Plan,
        seat: Seat,
        world: World,
        gradients: Callable[[], dict[Piece, torch.Tensor]],
    ) -> None:
        """`gradients` gives a view of this rank's gradient for each piece that it holds."""
        self._world, self._gradients, self._tp_ranks = world, gradients, seat.tp_ranks
        table = holders(model, plan)
        self.num_pieces = len(table)
        self._buckets: dict[Ranks, list[Piece]] = {}
        for piece, owners in table.items():
            ranks = leads(owners)
            if seat.rank in ranks and len(ranks) > 1:
                self._buckets.setdefault(ranks, []).append(piece)
        self._replicated = [
            piece for piece, owners in table.items() if seat.tp > 1 and seat.tp_ranks in owners
        ]
        self._owned = [
            (slot, piece)
            for slot, (piece, owners) in enumerate(table.items())
            if leads(owners)[slot % len(owners)] == seat.rank
        ]

    def sum_(self) -> None:
        """Gradient <- sum over pipelines, with equal bits on all holders.

        Never an average over ranks: two templates may train different shares of the batch, by
        which each has weighted its loss.
        """
        gradients = self._gradients()
        pending = []
        for ranks in sorted(
            self._buckets
        ):  # one order everywhere, or groups that overlap would deadlock
            targets = [gradients[piece] for piece in self._buckets[ranks]]
            flat = torch.cat([target.reshape(-1) for target in targets])
            group = self._world.groups[ranks]
            pending.append((group, group.start_all_reduce_(flat), flat, targets))
        for group, work, flat, targets in pending:
            group.finish(work)
            _unflatten(flat, targets)
        if self._replicated:  # only the lead of the TP group took part in the sum
            targets = [gradients[piece] for piece in self._replicated]
            flat = torch.cat([target.reshape(-1) for target in targets])
            self._world.groups[self._tp_ranks].broadcast_(flat, self._tp_ranks[0])
            _unflatten(flat, targets)

    def squares(self) -> torch.Tensor:
        """Sum of squares of each piece that this rank owns, fp64 [num_pieces], zero elsewhere.

        Each piece is counted once, by one owner, and the slots are added in canonical order: every
        rank gets the same bits. A norm per pipeline would differ in its last bit, and clipping by
        it makes replicas drift apart.
        """
        gradients, squares = self._gradients(), torch.zeros(self.num_pieces, dtype=torch.float64)
        for slot, piece in self._owned:
            squares[slot] = gradients[piece].double().square().sum()
        return squares


def _unflatten(flat: torch.Tensor, targets: list[torch.Tensor]) -> None:
    for target, part in zip(
        targets, torch.split(flat, [target.numel() for target in targets]), strict=True
    ):
        target.copy_(part.view_as(target))
