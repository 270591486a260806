"""Parts of what the ranks train: precision, the learning rate's schedule, and the data.

Worker and operator read them from plain data; `worker.contract.TrainingSpec` holds them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator


class Frozen(BaseModel):
    """Plain data that never changes and has no field that nobody reads."""

    # A loss of NaN travels as the string "NaN", which a float reads back: no value makes a report
    # unreadable.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


Precision = Literal["fp32", "bf16", "fp16"]


class LossScale(Frozen):
    """How fp16 keeps small gradients: the loss is multiplied, the summed gradient divided."""

    initial: Annotated[int, Field(ge=1, le=2**40)] = Field(
        default=2**16, description="of the first step; a power of two"
    )
    window: Annotated[int, Field(ge=1)] = Field(
        default=1000, description="steps without overflow after which it doubles"
    )

    @field_validator("initial")
    @classmethod
    def _is_exact(cls, initial: int) -> int:
        if initial & (initial - 1):
            raise ValueError(f"{initial} is no power of two, so gradients would be rounded by it")
        return initial


class Schedule(Frozen):
    """How the learning rate goes on after its warm-up; see `worker.engine.learning_rate`."""

    kind: Literal["constant", "cosine", "wsd"] = "constant"
    decay_steps: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description=(
            "steps of the decay: of cosine from the end of the warm-up on, null for all that are "
            "left; of wsd the last steps of the job"
        ),
    )
    min_learning_rate: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="where the decay ends"
    )

    def fault(self, learning_rate: float, warmup_steps: int, steps: int) -> str | None:
        """What is wrong with it in a job of so many steps, one sentence; None if nothing."""
        kind, decay = self.kind, self.decay_steps
        if kind == "constant" and (decay is not None or self.min_learning_rate):
            return (
                "a constant schedule has no decay; leave decaySteps and minLearningRate out, or "
                "use the kind cosine or wsd"
            )
        if kind == "wsd" and decay is None:
            return "a wsd schedule needs decaySteps, the last steps, in which the rate decays"
        if kind == "wsd" and decay is not None and warmup_steps + decay > steps:
            return (
                f"warm-up and decay take {warmup_steps} + {decay} steps, the job has {steps}; "
                "shorten one of them"
            )
        if self.min_learning_rate > learning_rate:
            return (
                f"minLearningRate {self.min_learning_rate:g} is above learningRate "
                f"{learning_rate:g}; lower it"
            )
        return None


def _leaves_training(split: tuple[float, float, float]) -> tuple[float, float, float]:
    if not split[0]:
        raise ValueError(
            f"the shares {', '.join(f'{share:g}' for share in split)} leave nothing to train on; "
            "the first must be above 0"
        )
    return split


Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Split = Annotated[tuple[Share, Share, Share], AfterValidator(_leaves_training)]


class Corpus(Frozen):
    """A dataset and its share of the samples."""

    path: str = Field(description="prefix of a Megatron .bin/.idx pair")
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


class DataSpec(Frozen):
    """What the ranks read."""

    blend: Annotated[tuple[Corpus, ...], Field(min_length=1)]
    split: Split = Field(
        default=(1.0, 0.0, 0.0),
        description="shares of the documents for training, held-out evaluation and the final test",
    )
