"""A HeddleJob from Megatron's arguments and DeepSpeed's configuration, and what was left out.

Pure.  Invariant: each argument is in the job, in the model, or in a sentence; what would train
something else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heddle.convert.deepspeed import Said, said_by_deepspeed
from heddle.convert.latent_attention import router_bias_rate
from heddle.convert.model import config_of
from heddle.convert.table import ARGUMENTS
from heddle.convert.words import Words
from heddle_operator.apis.errors import InvalidArguments
from planner.model.catalogue import MODELS
from planner.model.config import model_of_config
from planner.model.shape import ModelShape

CHECKPOINTS = "checkpoints"  # beside the final weights
LOSS_SCALE = 2**32  # Megatron's, where nothing is said


@dataclass(frozen=True, slots=True)
class Conversion:
    """Result of a conversion.

    Attributes:
        job: a HeddleJob as plain data; a model without a name has the path that was asked for.
        config: of the model's config.json; None where a name of the catalogue fits.
        notes: a sentence for each thing that is not in the job, and why.
    """

    job: dict[str, Any]
    config: dict[str, Any] | None
    notes: tuple[str, ...]


def convert(words: Words, deepspeed: Mapping[str, Any], name: str, folder: str) -> Conversion:
    """The job.

    Args:
        words: of the command line.
        deepspeed: content of ds_config.json; {} without one.
        name: of the job.
        folder: where the model's config.json will be, if it needs one.

    Raises:
        InvalidArguments: something is missing, or has no counterpart that trains the same.
    """
    said, notes = said_by_deepspeed(deepspeed)
    words = _joined(words, said)
    config = config_of(words)
    model = model_of_config(config, name)
    known = next((known for known, shape in MODELS.items() if _alike(shape, model)), None)
    spec: dict[str, Any] = {
        "model": {"name": known} if known else {"path": folder, "init": "Seed"},
        "data": _data(words),
        "training": _training(words),
        "steps": _steps(words),
    }
    output, every = words.text("--save"), words.count("--save-interval")
    if output is not None:
        spec["output"] = {"path": output}
        if every is not None:
            saves = f"{output.rstrip('/')}/{CHECKPOINTS}"
            spec["checkpoint"] = {"path": saves, "interval": {"steps": every}}
    job = {
        "apiVersion": "heddle.dev/v1alpha1",
        "kind": "HeddleJob",
        "metadata": {"name": name},
        "spec": spec,
    }
    if words.has("--fp16") and not words.has("--initial-loss-scale"):
        notes.append(
            f"training.lossScale.initial is {LOSS_SCALE}, as Megatron has it where nothing is "
            "said; steps are skipped until it fits, say --initial-loss-scale 65536 for fewer"
        )
    if every is not None and output is None:
        notes.append("--save-interval: nothing is saved without --save, as in Megatron")
    return Conversion(job, None if known else config, (*_left_out(words), *notes))


def _joined(words: Words, said: Said) -> Words:
    """The arguments, and what DeepSpeed's configuration says beside them.

    Raises:
        InvalidArguments: the two differ in a value.
    """
    for key, value in said.items():
        given = words.values.get(key)
        if given and value and not _same(given[0], value[0]):
            raise InvalidArguments(
                f"{key} is {given[0]} among the arguments and {value[0]} in DeepSpeed's "
                "configuration; make them agree",
                field=key,
                code="Contradiction",
            )
    return Words({**said, **words.values}, words.unknown)


def _left_out(words: Words) -> list[str]:
    """A sentence for each argument that the job does without."""
    unknown = [
        f"{key}: this argument is not known here, and left out; see whether it changes the training"
        for key in words.unknown
    ]
    known = [
        f"{key}: {ARGUMENTS[key].words}"
        for key in words.values
        if ARGUMENTS[key].fate in ("chosen", "none")
    ]
    return unknown + known


def _same(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


def _alike(known: ModelShape, model: ModelShape) -> bool:
    """Whether a model of the catalogue is this one, whatever it is called."""
    stated, found = known.to_json(), model.to_json()
    return {**stated, "name": "", "recompute": ""} == {**found, "name": "", "recompute": ""}


def _needed(words: Words, name: str) -> float:
    found = words.number(name)
    if found is None:
        raise InvalidArguments(f"{name} is missing; a job needs it", field=name, code="Missing")
    return found


def _in_steps(
    words: Words, iterations: str, samples: str, *, is_rounded: bool = False
) -> int | None:
    """A number that Megatron takes in iterations or in samples; `is_rounded` to whole batches."""
    counted = words.count(samples)
    if counted is None:
        return words.count(iterations)
    batch = int(_needed(words, "--global-batch-size"))
    if is_rounded:
        return round(counted / batch)
    if counted % batch:
        raise InvalidArguments(
            f"{samples} {counted} is no multiple of the global batch {batch}",
            field=samples,
            code="OutOfRange",
        )
    return counted // batch


def _steps(words: Words) -> int:
    found = _in_steps(words, "--train-iters", "--train-samples")
    if not found:
        raise InvalidArguments(
            "--train-iters is missing; a job needs a number of steps",
            field="--train-iters",
            code="Missing",
        )
    return found


def _training(words: Words) -> dict[str, Any]:
    optimizer = (words.text("--optimizer") or "adam").lower()
    if optimizer not in ("adam", "adamw"):
        raise InvalidArguments(
            f"--optimizer is {optimizer}; Heddle has AdamW", field="--optimizer", code="Unsupported"
        )
    if words.has("--fp16") and words.has("--bf16"):
        raise InvalidArguments(
            "--fp16 and --bf16 are both given; give one", field="--fp16", code="Contradiction"
        )
    precision = "fp16" if words.has("--fp16") else "bf16" if words.has("--bf16") else "fp32"
    clip = words.number("--clip-grad", 1.0)
    if not clip:
        raise InvalidArguments(
            "--clip-grad 0 means no clipping; Heddle always clips; use a large norm, "
            "for example 1e9",
            field="--clip-grad",
            code="Unsupported",
        )
    training: dict[str, Any] = {
        "globalBatch": int(_needed(words, "--global-batch-size")),
        "sequenceLength": int(_needed(words, "--seq-length")),
        "precision": precision,
        "seed": words.count("--seed", 1234),
        "learningRate": _needed(words, "--lr"),
        "warmupSteps": _warm_up(words),
        "betas": [words.number("--adam-beta1", 0.9), words.number("--adam-beta2", 0.999)],
        "epsilon": words.number("--adam-eps", 1e-8),
        "weightDecay": words.number("--weight-decay", 0.01),
        "gradientClip": clip,
    }
    rate = router_bias_rate(words)
    if rate is not None:
        training["routerBiasRate"] = rate
    evaluated = words.count("--eval-iters", 100) or 0  # batches; 0: none
    if words.has("--eval-interval") and evaluated:
        training["evaluateEvery"] = words.count("--eval-interval")
        training["evaluateSamples"] = training["globalBatch"] * evaluated
    schedule = _schedule(words, _warm_up(words))
    if schedule["kind"] != "constant":
        training["schedule"] = schedule
    if precision == "fp16":
        training["lossScale"] = {
            "initial": words.count("--initial-loss-scale", LOSS_SCALE),
            "window": words.count("--loss-scale-window", 1000),
        }
    return training


def _decay_steps(words: Words) -> int:
    """Until the rate has reached its least, the warm-up included."""
    found = _in_steps(words, "--lr-decay-iters", "--lr-decay-samples", is_rounded=True)
    return found or _steps(words)


def _warm_up(words: Words) -> int:
    share = words.number("--lr-warmup-fraction")
    if share is not None:
        return round(share * _decay_steps(words))
    return _in_steps(words, "--lr-warmup-iters", "--lr-warmup-samples", is_rounded=True) or 0


def _schedule(words: Words, warm_up: int) -> dict[str, Any]:
    style = (words.text("--lr-decay-style") or "linear").lower()  # Megatron's own default
    steps, decay = _steps(words), _decay_steps(words)
    least = {"minLearningRate": words.number("--min-lr", 0.0)}
    if style == "constant":
        return {"kind": "constant"}
    if style == "cosine":
        return {"kind": "cosine", "decaySteps": max(1, decay - warm_up), **least}
    if decay != steps:
        raise InvalidArguments(
            f"the decay {style} ends after {decay} steps and the training after {steps}; a wsd "
            "schedule ends with the job, so make them agree",
            field="--lr-decay-style",
            code="Contradiction",
        )
    if style == "linear":
        return {"kind": "wsd", "decaySteps": max(1, steps - warm_up), **least}
    if style == "wsd":
        shape = words.text("--lr-wsd-decay-style", "exponential")
        if shape != "linear":
            raise InvalidArguments(
                f"--lr-wsd-decay-style is {shape}; Heddle's wsd is linear",
                field="--lr-wsd-decay-style",
                code="Unsupported",
            )
        return {"kind": "wsd", "decaySteps": int(_needed(words, "--lr-wsd-decay-iters")), **least}
    raise InvalidArguments(
        f"--lr-decay-style is {style}; Heddle has constant, linear, cosine and wsd",
        field="--lr-decay-style",
        code="Unsupported",
    )


def _split(words: Words) -> list[float]:
    """Shares of training, evaluation and test."""
    text = words.text("--split") or "969,30,1"  # Megatron's own default
    try:
        shares = [float(share) for share in text.split(",")]
    except ValueError:
        raise InvalidArguments(
            f"--split is {text!r}; it must be up to three numbers with commas between them",
            field="--split",
            code="Malformed",
        ) from None
    return [*shares, 0.0, 0.0][:3]


def _data(words: Words) -> dict[str, Any]:
    parts = words.values.get("--data-path", ())
    parts = tuple(part for word in parts for part in word.split())
    if not parts:
        raise InvalidArguments(
            "--data-path is missing; a job needs data", field="--data-path", code="Missing"
        )
    data: dict[str, Any]
    if len(parts) == 1:
        data = {"path": parts[0]}
    elif len(parts) % 2:
        raise InvalidArguments(
            f"--data-path has {len(parts)} parts; several data sets are written as WEIGHT PATH "
            "WEIGHT PATH",
            field="--data-path",
            code="Malformed",
        )
    else:
        try:
            weights = [float(weight) for weight in parts[::2]]
        except ValueError:
            raise InvalidArguments(
                f"--data-path {' '.join(parts)}: each path needs a number before it, its weight",
                field="--data-path",
                code="Malformed",
            ) from None
        blend = zip(parts[1::2], weights, strict=True)
        data = {"blend": [{"path": path, "weight": weight} for path, weight in blend]}
    data["split"] = _split(words)
    masks = ("--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss")
    given = [mask for mask in masks if words.has(mask)]
    if given and len(given) < len(masks):
        raise InvalidArguments(
            f"{' and '.join(given)} without {' and '.join(m for m in masks if m not in given)}; "
            "Heddle's documentMask is all three, give them or none",
            field=given[0],
            code="Unsupported",
        )
    if given:
        data["documentMask"] = True
    return data
