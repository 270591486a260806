"""What the ranks train: model, data, precision, optimizer and the learning rate's schedule.

Part of the contract of worker and operator; both read it from plain data.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from planner.model.catalogue import find_model
from planner.model.config import model_of_config
from planner.model.shape import ModelShape

IGNORED = -100  # a label that is not to be learnt: torch's own number for it


class Frozen(BaseModel):
    """Plain data that never changes; a field that it does not know is left out.

    Operator and workers may be of two versions for as long as a job runs, so whoever reads must
    get along with what a newer one adds.  Mistakes of users are found where they write.
    """

    # A loss of NaN travels as the string "NaN", which a float reads back: no value makes a report
    # unreadable.
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


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
    tokenizer: str | None = Field(
        default=None,
        description="tokenizer.json, or a folder with one, that all pairs were made with",
    )
    document_mask: bool = Field(
        default=False,
        description="whether each document of a sample is computed as if it were alone",
    )


def evaluation_fault(
    every: int | None, samples: int | None, split: tuple[float, float, float]
) -> str | None:
    """What is wrong with an evaluation, one sentence; None if nothing."""
    if every is None and samples is not None:
        return "evaluateSamples is of no use without evaluateEvery; give both, or none"
    if every is not None and not split[1]:
        return (
            "evaluateEvery needs a held-out part; leave some documents for it in "
            "spec.data.split, for example [98, 2, 0]"
        )
    return None


class TrainingSpec(Frozen):
    """What the ranks train, equal in every epoch of a job."""

    model: str = Field(description="name of the model")
    shape: dict[str, Any] | None = Field(
        default=None,
        description="the model, as `ModelShape.to_json`; null: that of `config`, or of this name",
    )
    data: DataSpec = Field(description="a prefix alone stands for a blend of one corpus")
    global_batch: Annotated[int, Field(ge=1)]
    sequence_length: Annotated[int, Field(ge=1)]
    precision: Precision = Field(
        default="fp32",
        description=(
            "of weights and activations; master weights, moments and gradients are fp32 in each"
        ),
    )
    loss_scale: LossScale | None = Field(
        default=None, description="of fp16, which has one; null: that of its defaults"
    )
    seed: int = 1
    steps: Annotated[int, Field(ge=1)]
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    warmup_steps: Annotated[int, Field(ge=0)] = 50
    schedule: Schedule = Schedule()
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: Annotated[float, Field(gt=0)] = 1e-6
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="of AdamW; norms, biases and other tensors of one dimension have none",
    )
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    config: dict[str, Any] | None = Field(
        default=None, description="the model's config.json; null for a name of the catalogue"
    )
    folder: str | None = Field(
        default=None,
        description="Hugging Face folder of the model, whose config.json must be `config`",
    )
    weights: str | None = Field(
        default=None, description="folder of Hugging Face weights to start from, else by the seed"
    )
    evaluate_every: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="steps from one evaluation on the held-out part to the next; null: none",
    )
    evaluate_samples: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="of an evaluation, at most; null for the usual number"
    )
    output: str | None = Field(default=None, description="folder for the final weights")
    run: str | None = Field(
        default=None,
        description="id of the run, in its output folder and its measurements; null: has none",
    )
    verify: Literal["moved", "full"] = Field(
        default="moved",
        description="at a change, what was sent and received, or every copy of all of the state",
    )
    on_non_finite: Literal["stop", "skip"] = Field(
        default="stop", description="what to do at a loss or gradient norm that is not finite"
    )

    @field_validator("data", mode="before")
    @classmethod
    def _prefix_alone(cls, data: object) -> object:
        return {"blend": [{"path": data}]} if isinstance(data, str) else data

    @property
    def scaling(self) -> LossScale | None:
        """How the loss is scaled; None: it is not."""
        return (self.loss_scale or LossScale()) if self.precision == "fp16" else None

    @model_validator(mode="after")
    def _scales_fp16_alone(self) -> TrainingSpec:
        if self.loss_scale is not None and self.precision != "fp16":
            raise ValueError(
                f"precision {self.precision} has no loss scale; leave lossScale out or use fp16"
            )
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> TrainingSpec:
        fault = self.schedule.fault(self.learning_rate, self.warmup_steps, self.steps)
        if fault is not None:
            raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _evaluation_fits(self) -> TrainingSpec:
        fault = evaluation_fault(self.evaluate_every, self.evaluate_samples, self.data.split)
        if fault is not None:
            raise ValueError(fault)
        return self

    def evaluates_at(self, step: int) -> bool:
        """Whether the model after so many steps is evaluated: also the first and the last."""
        every = self.evaluate_every
        return every is not None and (step % every == 0 or step >= self.steps)

    def model_shape(self) -> ModelShape:
        """The model that is trained.

        Raises:
            InvalidWorkload: the shape or the config.json is none, or there is neither and the name
                is unknown.
        """
        if self.shape is not None:
            return ModelShape.from_json(self.shape)
        if self.config is not None:
            return model_of_config(self.config, self.model)
        return find_model(self.model)
