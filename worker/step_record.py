"""Measurements of a job: at each step, and when it is evaluated.

Part of the contract between operator and worker.
"""

from __future__ import annotations

import math

from pydantic import Field

from worker.training_settings import Frozen


class StepRecord(Frozen):
    """One trained step, as rank 0 or any other rank of the epoch saw it (all see the same loss)."""

    epoch: int
    step: int = Field(description="index of the step, from 0")
    loss: float
    gradient_norm: float
    start_s: float = Field(description="monotonic clock of the machine")
    end_s: float
    learning_rate: float | None = None
    loss_scale: float | None = Field(default=None, description="1 without scaling")
    tokens: int | None = Field(default=None, description="of the global batch")
    mfu: float | None = Field(
        default=None,
        description="model FLOP/s over the peak of the plan's GPUs; null: a peak is unknown",
    )
    forward_s: float | None = Field(default=None, description="the mean over the plan's ranks")
    backward_s: float | None = Field(default=None, description="likewise")
    waiting_s: float | None = Field(
        default=None, description="for activations and gradients of neighbours, likewise"
    )
    sync_s: float | None = Field(
        default=None, description="sum of gradients and update, the wait for the slowest with it"
    )
    memory_bytes: int | None = Field(
        default=None, description="the most that a rank of the plan has held"
    )
    wire: str | None = Field(
        default=None,
        description="which carried the payload; of NCCL: class, version and settings",
    )

    @property
    def overflowed(self) -> bool:
        """Whether only its scaled gradients did not fit into fp16: a smaller scale will do."""
        scaled = self.loss_scale is not None and self.loss_scale > 1
        return scaled and math.isfinite(self.loss) and not math.isfinite(self.gradient_norm)

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.end_s - self.start_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of a second; None where their number is not told."""
        return self.tokens / self.step_s if self.tokens and self.step_s > 0 else None


class EvaluationRecord(Frozen):
    """One evaluation on the held-out part, as any rank of the epoch saw it (all see the same)."""

    epoch: int
    step: int = Field(description="completed steps of the model")
    loss: float = Field(description="mean over all labels of the samples")
    samples: int
    start_s: float = Field(description="monotonic clock of the machine")
    end_s: float
