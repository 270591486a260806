"""The seam between a rank and the training engine below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from planner.model.shape import ModelShape
from planner.plans.plan import Plan
from planner.plans.ranks import Seat
from worker.contract import TrainingSpec
from worker.control.activity import Activity
from worker.world.world import World

# weight, exp_avg, exp_avg_sq: everything of a tensor that must survive a plan change
Parts = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class StageBuild:
    """What the engine of one rank is built from.

    Building communicates nothing and reads no numbers, so that it can go on while another engine
    trains on some of the same tensors.

    Attributes:
        seat: of the rank in the plan.
        world: that the ranks of the plan have formed.
        shards: {tensor name: (weight, exp_avg, exp_avg_sq)} of this rank, which the engine trains
            in place.
        activity: of this rank, which the engine keeps up to date while it trains.
    """

    model: ModelShape
    spec: TrainingSpec
    plan: Plan
    seat: Seat
    world: World
    shards: Mapping[str, Parts]
    activity: Activity


@dataclass(frozen=True, slots=True)
class StepResult:
    """What every rank of the world knows after a step, with equal bits.

    Attributes:
        loss: of the global batch.
        gradient_norm: plan-wide, before clipping.
        agreed_epoch: the epoch that all ranks are ready to switch to at this boundary, or None.
    """

    loss: float
    gradient_norm: float
    agreed_epoch: int | None


@dataclass(slots=True)
class Progress:
    """How far this rank has come, in a form that outlives an error in the middle of a step.

    Attributes:
        step: completed steps of the state that it holds.
        updates: applied in them: a step whose gradients were not finite may have been skipped.
        gradients_step: index of the step whose reduced gradients it holds and has not applied.
        norm: (index of the step, its loss, its norm) of the newest plan-wide norm that it knows.
    """

    step: int = 0
    updates: int = 0
    gradients_step: int | None = None
    norm: tuple[int, float, float] | None = None


class Engine(Protocol):
    """Trains one rank's stage of one plan, on tensors that somebody else owns.

    Attributes:
        progress: to be set before the first step.
    """

    progress: Progress

    def train_step(self, ready_epoch: int | None) -> StepResult:
        """Train the next step; `ready_epoch` is the epoch that this rank is ready to switch to.

        Any error means that the world is broken; `progress` then says what is left.
        """

    def apply(self, gradient_norm: float) -> None:
        """Apply the reduced gradients that are held, with a norm learnt from another rank."""

    def overruns(self) -> int:
        """Emulated stages that took too long."""

    def release(self) -> None:
        """Free everything but the shards; the engine is dead afterwards."""
