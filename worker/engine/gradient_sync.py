"""Gradient sum and gradient norm across unequal pipelines, driven by the piece table.

Stages of different templates hold different layers in different cuts, so "the data-parallel group
of this stage" does not exist.  Each piece has its own contributors; pieces with the same ones
share messages, so a small step costs as many collectives as there are distinct rank sets.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from planner.cost.memory import WORKER_BUCKET
from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from planner.plans.pieces import Piece, holders
from planner.plans.plan import Plan
from planner.plans.ranks import Seat
from worker.engine.bucket import Bucket, messages_of
from worker.world.group import Ranks
from worker.world.world import World, leads

SQUARED_AT_ONCE = 1 << 20  # elements: 8 MiB in fp64, and large beside the launch of a kernel


def step_norm(loss: float, norm: float) -> float:
    """The gradient norm of a step; infinite after an overflow, NaN where the loss is not finite.

    So that whoever learns the norm alone, after a loss of peers, does what the others did.
    """
    if not math.isfinite(loss):
        return math.nan
    return norm if math.isfinite(norm) else math.inf


class GradientSync:
    """The gradient sum of one rank in one epoch.

    Attributes:
        num_pieces: slots that the norm of the whole plan needs, one a piece.
        bucket: through which all gradients go.
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
        own = gradients()
        shapes = {piece: tuple(gradient.shape) for piece, gradient in own.items()}
        self._device = next(iter(own.values())).device
        self.num_pieces = len(table)
        shared: dict[Ranks, list[Piece]] = {}
        for piece, owners in table.items():
            ranks = leads(owners)
            if seat.rank in ranks and len(ranks) > 1:
                shared.setdefault(ranks, []).append(piece)
        replicated = [p for p, owners in table.items() if seat.tp > 1 and seat.tp_ranks in owners]
        self._sums = messages_of(shared, shapes, WORKER_BUCKET)
        self._copies = messages_of({self._tp_ranks: replicated}, shapes, WORKER_BUCKET)
        self.bucket = Bucket(min(sum(map(math.prod, shapes.values())), WORKER_BUCKET), self._device)
        counted = {tensor.name for tensor in model_tensors(model) if tensor.is_counted}
        self._owned = [
            (slot, piece)
            for slot, (piece, owners) in enumerate(table.items())
            if leads(owners)[slot % len(owners)] == seat.rank and piece.tensor not in counted
        ]

    def sum_(self) -> None:
        """Gradient <- sum over pipelines, with equal bits on all holders.

        Never an average over ranks: two templates may train different shares of the batch, by
        which each has weighted its loss.
        """
        gradients = self._gradients()
        for message in self._sums:
            self.bucket.sum_(message, gradients, self._world.groups[message.ranks])
        self.bucket.finish()
        for message in self._copies:  # only the lead of the TP group took part in the sum
            group = self._world.groups[message.ranks]
            self.bucket.copy_(message, gradients, group, self._tp_ranks[0])

    def squares(self) -> torch.Tensor:
        """Sum of squares of each piece that this rank owns, fp64 [num_pieces], zero elsewhere.

        It is on the device, where nobody waits for it.

        Each piece is counted once, by one owner, so every rank gets the same bits.  What has no
        gradient has no square.
        A norm per pipeline would differ in its last bit, and clipping by it makes replicas drift
        apart.
        """
        gradients = self._gradients()
        squares = torch.zeros(self.num_pieces, dtype=torch.float64, device=self._device)
        for slot, piece in self._owned:
            squares[slot] = square_of(gradients[piece])
        return squares


def square_of(gradient: torch.Tensor) -> torch.Tensor:
    """Sum of squares of one piece, an fp64 scalar on its device.

    A large piece is squared some rows at a time, by its shape alone: its sum has one order,
    whatever tensor it is a view of.
    """
    rows_at_once = max(1, SQUARED_AT_ONCE // max(1, math.prod(gradient.shape[1:])))
    parts = torch.split(gradient, rows_at_once)
    squares = (rows.to(torch.float64, copy=True).square_().sum() for rows in parts)
    return functools.reduce(torch.Tensor.add_, squares)


def norm_of(squares: torch.Tensor) -> float:
    """The norm of the whole plan from the squares of all pieces, host fp64.

    The sum is the exact one, rounded: its bits depend on no instruction set of a rank's processor.
    """
    return math.sqrt(math.fsum(squares.numpy()))
