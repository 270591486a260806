"""Training settings: model, data, precision, optimizer and the learning rate's schedule.

Part of the contract of worker and operator; both read it from plain data.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from planner.model.catalogue import find_model
from planner.model.config import model_of_config
from planner.model.shape import ModelShape
from planner.model.workload import (
    MOST_COUNT,
    MOST_SAMPLES,
    MOST_SEED,
    MOST_TOKENS,
    GpuWire,
    Workload,
)

# Suffixes of inputs of `heddle data prepare`.
TEXT_SUFFIXES = (".md", ".py", ".rst", ".txt")  # of folders; a file that is named is always taken
LINES_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIXES = (".parquet",)
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")  # of S3, as its service names them
IGNORED = -100  # a label that is not to be learnt: torch's own number for it


class Frozen(BaseModel):
    """Plain data that never changes; a field that it does not know is left out.

    Operator and workers may be of two versions for as long as a job runs, so whoever reads must
    get along with what a newer one adds.  Mistakes of users are found where they write.
    """

    # A loss of NaN travels as the string "NaN", which a float reads back: no value makes a report
    # unreadable.
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


class Section(BaseModel):
    """One object of a HeddleJob: camelCase keys there, snake_case between operator and workers.

    Its fields are described for users, because the resource is generated from them.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        ser_json_inf_nan="strings",
    )


Precision = Literal["fp32", "bf16", "fp16"]
Verify = Literal["Moved", "Full"]
OnNonFinite = Literal["Stop", "Skip"]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
CountFrom0 = Annotated[int, Field(ge=0, le=MOST_COUNT)]
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class LossScale(Section):
    """Loss scale of fp16, which keeps small gradients; a step that overflows halves it.

    The summed gradient is divided by the scale, and a step that overflows is skipped.
    """

    initial: Annotated[int, Field(ge=1, le=2**40)] = Field(
        default=2**16, description="Loss scale of the first step; a power of two."
    )
    window: Count = Field(
        default=1000, description="Steps without overflow after which the scale doubles."
    )

    @field_validator("initial")
    @classmethod
    def _is_exact(cls, initial: int) -> int:
        if initial & (initial - 1):
            raise ValueError(f"{initial} is no power of two, so gradients would be rounded by it")
        return initial


class Schedule(Section):
    """Learning rate after the warm-up.

    See `worker.engine.learning_rate`.
    """

    kind: Literal["constant", "cosine", "wsd"] = Field(
        default="constant",
        description=(
            "constant stays at learningRate. cosine falls to minLearningRate along half a "
            "cosine. wsd stays, then falls in a straight line at the end."
        ),
    )
    decay_steps: Count | None = Field(
        default=None,
        description=(
            "Number of steps of the decay. cosine decays from the end of the warm-up, by "
            "default to the last step. wsd decays over the last steps of the job."
        ),
    )
    min_learning_rate: NotNegative = Field(
        default=0.0, description="Learning rate at the end of the decay."
    )

    def fault(self, learning_rate: float, warmup_steps: int, steps: int) -> str | None:
        """The fault of the schedule in a job of so many steps, one sentence; else None."""
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


Split = Annotated[tuple[NotNegative, NotNegative, NotNegative], AfterValidator(_leaves_training)]


class Corpus(Frozen):
    """A dataset and its share of the samples."""

    path: str = Field(description="prefix of a Megatron .bin/.idx pair")
    weight: Positive = 1.0


class DataSpec(Frozen):
    """Data that the ranks read."""

    blend: Annotated[tuple[Corpus, ...], Field(min_length=1)]
    split: Split = Field(
        default=(1.0, 0.0, 0.0),
        description="shares of the documents for training, held-out evaluation and the final test",
    )
    tokenizer: str | None = Field(
        default=None,
        description="tokenizer.json of all pairs, or a folder with one",
    )
    document_mask: bool = Field(
        default=False,
        description="compute each document of a sample as if it were alone",
    )


def evaluation_fault(
    every: int | None, samples: int | None, split: tuple[float, float, float]
) -> str | None:
    """The fault of an evaluation, one sentence; else None."""
    if every is None and samples is not None:
        return "evaluateSamples is of no use without evaluateEvery; give both, or none"
    if every is not None and not split[1]:
        return (
            "evaluateEvery needs a held-out part; leave some documents for it in "
            "spec.data.split, for example [98, 2, 0]"
        )
    return None


class Training(Section):
    """Settings that the loss depends on; the plan never does."""

    global_batch: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = Field(
        description="Samples of one optimizer step."
    )
    sequence_length: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = Field(
        description="Tokens of one sample."
    )
    precision: Precision = Field(
        default="fp32",
        description=(
            "Precision of weights and activations. Master weights, moments and summed gradients "
            "are fp32 in each."
        ),
    )
    loss_scale: LossScale | None = None
    seed: Seed = Field(
        default=1, description="Seed of the weights, of dropout and of the order of samples."
    )
    learning_rate: Positive = Field(default=1e-3, description="Learning rate after the warm-up.")
    warmup_steps: CountFrom0 = Field(
        default=50, description="Steps over which the learning rate grows from 0."
    )
    schedule: Schedule = Schedule()
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.95), description="Adam's beta1 and beta2.")
    epsilon: Positive = Field(default=1e-6, description="Adam's epsilon.")
    weight_decay: NotNegative = Field(
        default=0.0,
        description=(
            "Weight decay of AdamW. Norms, biases and other tensors of one dimension have none."
        ),
    )
    gradient_clip: Positive = Field(
        default=1.0, description="Norm to which larger gradients are clipped."
    )
    router_bias_rate: NotNegative = Field(
        default=1e-3,
        description=(
            "Change of the bias of each expert after a step, of models whose experts have "
            "one. Experts with fewer tokens than the mean get more. 0 keeps the biases."
        ),
    )
    on_non_finite: OnNonFinite = Field(
        default="Stop",
        description=(
            "Action at a loss or gradient norm that is not finite. Stop ends the job with "
            "the condition Diverged. Skip leaves out the step's update and trains on; the "
            "condition counts such steps."
        ),
    )
    evaluate_every: Count | None = Field(
        default=None,
        description=(
            "Steps between evaluations on the held-out part of the split. The first and "
            "the last model are evaluated too. Without it, nothing is evaluated."
        ),
    )
    evaluate_samples: Count | None = Field(
        default=None, description="Most samples of an evaluation; 256 by default."
    )

    @property
    def scaling(self) -> LossScale | None:
        """How the loss is scaled; None: it is not."""
        return (self.loss_scale or LossScale()) if self.precision == "fp16" else None

    @model_validator(mode="after")
    def _scales_fp16_alone(self) -> Self:
        if self.loss_scale is not None and self.precision != "fp16":
            raise ValueError(
                f"precision {self.precision} has no loss scale; leave lossScale out or use fp16"
            )
        return self


class Checkpointing(Frozen):
    """When and where a job saves checkpoints."""

    path: str = Field(description="folder of the checkpoints, as every pod sees it")
    every_steps: Count | None = Field(
        default=None, description="steps between two saves; null: none is due by steps"
    )
    every_s: Positive | None = Field(
        default=None, description="seconds between two saves; null: none is due by time"
    )
    epochs_before: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="added to an epoch in names: what an earlier job of the name saved is older",
    )
    keep_last: Count = Field(default=2, description="complete checkpoints that stay")
    keep_best: bool = Field(
        default=False, description="the checkpoint with the lowest held-out loss stays too"
    )


class TrainingSpec(Training):
    """Task of the ranks, equal in every epoch of a job."""

    model_config = ConfigDict(extra="ignore", loc_by_alias=False)

    model: str = Field(description="name of the model")
    shape: dict[str, Any] | None = Field(
        default=None,
        description=(
            "the model, as `ModelShape.to_json`; null: the model of `config`, or of this name"
        ),
    )
    data: DataSpec = Field(description="a prefix alone stands for a blend of one corpus")
    steps: Count
    config: dict[str, Any] | None = Field(
        default=None, description="the model's config.json; null for a name of the catalogue"
    )
    folder: str | None = Field(
        default=None,
        description="Hugging Face folder of the model, whose config.json must be `config`",
    )
    weights: str | None = Field(
        default=None,
        description="folder of Hugging Face weights to start from; null: the seed gives them",
    )
    output: str | None = Field(default=None, description="folder for the final weights")
    run: str | None = Field(
        default=None,
        description="id of the run in its output folder and measurements; null for none",
    )
    checkpoint: Checkpointing | None = Field(
        default=None, description="when and where checkpoints are saved; null: never"
    )
    verify: Verify = Field(
        default="Moved",
        description="check at a change: data sent and received, or every copy of the whole state",
    )

    @field_validator("data", mode="before")
    @classmethod
    def _prefix_alone(cls, data: object) -> object:
        return {"blend": [{"path": data}]} if isinstance(data, str) else data

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

    def workload(self, model: ModelShape, wire: GpuWire = "nccl") -> Workload:
        """What is trained, as the planner prices it: a model of `model_shape`, by that wire."""
        return Workload(
            model=model,
            global_batch=self.global_batch,
            sequence_length=self.sequence_length,
            precision=self.precision,
            wire=wire,
        )

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
