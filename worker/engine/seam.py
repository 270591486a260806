"""The seam between a rank and the training engine below it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from planner.model.shape import ModelShape
from planner.plans.plan import Plan
from planner.plans.ranks import Seat
from worker.contract import TrainingSpec
from worker.control.activity import Activity
from worker.training_settings import LossScale
from worker.world.world import World

# In the place of an epoch: ready to save at the next boundary and stop there, or to train on.
SUSPEND, SAVE = -1, -2
# weight, exp_avg, exp_avg_sq, all fp32: everything owned of a tensor that must survive a change
Parts = tuple[torch.Tensor, ...]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Buffers:
    """Buffers of an engine beside the state; they follow from the state, or are written first.

    Attributes:
        weights: {tensor name: what is multiplied}, of all that the rank holds: in fp32 the weights
            themselves, else copies in low precision; updates and their owners write them anew.
        gradients: {tensor name: fp32 sum over the micro-batches of a step}.
    """

    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    gradients: Mapping[str, torch.Tensor] = field(default_factory=dict)


MOST_SCALE = 1 << 40  # beyond it no gradient is too small


class Still(Protocol):
    """Readers of the state between two updates; the engine is its only writer and tells them."""

    def before_update(self, tensor: str) -> None:
        """Return once no reader needs the numbers of a tensor as they are; never raises."""

    def boundary(self, progress: Progress) -> None:
        """Tell that the update is whole: the state is that of `progress`, and stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBuild:
    """Parts from which the engine of one rank is built.

    Building communicates nothing and reads no numbers, so that it can go on while another engine
    trains on some of the same tensors.

    Attributes:
        seat: of the rank in the plan.
        world: that the ranks of the plan have formed.
        shards: {tensor name: (weight, exp_avg, exp_avg_sq)} of what this rank owns, which the
            engine trains in place.
        buffers: that it works on; their numbers are those of the shards once it trains.
        activity: of this rank, which the engine keeps up to date while it trains.
        still: of this rank, which the engine tells of every update.
    """

    model: ModelShape
    spec: TrainingSpec
    plan: Plan
    seat: Seat
    world: World
    shards: Mapping[str, Parts]
    buffers: Buffers
    activity: Activity
    still: Still


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of a step on every rank of the world, with equal bits.

    Attributes:
        step: its index.
        loss: of the global batch.
        gradient_norm: plan-wide, before clipping.
        agreed_epoch: the epoch that all ranks are ready to switch to at this boundary, SUSPEND,
            SAVE, or None.
        met_s: when this rank knew what all ranks know, by the monotonic clock.
        learning_rate: of the update.
        loss_scale: of the step; 1 without scaling.
        parts_s: seconds of each of `step_clock.PARTS`, the mean over the ranks of the plan.
        sync_s: from this rank's last backward pass to its update, the sum of gradients and the
            wait for the slowest rank with it.
        memory_bytes: the most that a rank of the plan has held.
        compute_s: seconds of this rank's own forward and backward passes, waiting left out; the
            one field that differs between ranks beside `sync_s`.
    """

    step: int
    loss: float
    gradient_norm: float
    agreed_epoch: int | None
    met_s: float
    learning_rate: float = 0.0
    loss_scale: int = 1
    parts_s: tuple[float, ...] = (0.0, 0.0, 0.0)
    sync_s: float = 0.0
    memory_bytes: int = 0
    compute_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation on every rank of the world, with equal bits.

    Attributes:
        loss: mean over all labels of the samples.
        samples: how many there were.
    """

    loss: float
    samples: int


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far this rank has come, in a form that outlives an error in the middle of a step.

    Attributes:
        step: completed steps of the state that it holds.
        updates: applied in them: a step whose gradients were not finite may have been skipped.
        loss_scale: of the next step; a power of two, 1 without scaling.
        good_steps: finite ones since the scale last changed.
        gradients_step: index of the step whose reduced gradients it holds and has not applied.
        result: of the newest step whose plan-wide norm it knows.
    """

    step: int = 0
    updates: int = 0
    loss_scale: int = 1
    good_steps: int = 0
    gradients_step: int | None = None
    result: StepResult | None = None

    @staticmethod
    def of_start(spec: TrainingSpec) -> Progress:
        """Where a job begins."""
        return Progress(loss_scale=spec.scaling.initial if spec.scaling else 1)

    @property
    def agreed(self) -> tuple[int, int, int, int]:
        """Counters that are equal on all holders: step, updates, loss scale, good steps."""
        return self.step, self.updates, self.loss_scale, self.good_steps

    def advance(self, norm: float, scaling: LossScale | None) -> None:
        """Count a step whose gradient has that norm, which is the same on every rank.

        One that is not finite was no update.  An infinite one is an overflow and halves the loss
        scale; NaN says that the loss itself was not finite, which no scale mends.
        """
        self.step += 1
        self.gradients_step = None
        self.updates += math.isfinite(norm)
        if scaling is None or math.isnan(norm):
            return
        self.good_steps += 1
        if math.isinf(norm):
            self.loss_scale, self.good_steps = max(1, self.loss_scale // 2), 0
        elif self.good_steps >= scaling.window:  # it may be smaller than before a restart
            self.loss_scale, self.good_steps = min(2 * self.loss_scale, MOST_SCALE), 0


class Engine(Protocol):
    """Trains one rank's stage of one plan, on tensors that somebody else owns.

    Attributes:
        progress: to be set before the first step.
    """

    progress: Progress

    def train_step(self, ready_epoch: int | None) -> StepResult:
        """Train the next step.

        `ready_epoch` is the epoch that this rank is ready to switch to, or SUSPEND or SAVE.

        Any error means that the world is broken; `progress` then says what is left.
        """

    def evaluate(self) -> Evaluation:
        """The held-out loss of the model as it is; changes nothing of the state.

        Any error means that the world is broken, as in a step.
        """

    def apply(self, gradient_norm: float) -> None:
        """Apply the reduced gradients that are held, with a norm learnt from another rank."""

    def spread(self) -> int:
        """Give the weights of owned rows to those who multiply them; a collective of the plan.

        Called once the plan is the one that trains, and after each update.

        Returns:
            Bytes that this rank got from others.
        """

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The fp32 weights of all that this rank holds; a collective at the end of the training."""

    def overruns(self) -> int:
        """Emulated stages that took too long."""

    def release(self) -> None:
        """Free everything but the shards; the engine is dead afterwards."""
