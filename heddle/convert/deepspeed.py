"""DeepSpeed's configuration in Megatron's words, and what of it has no counterpart."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from heddle.convert.table import CHOSEN
from heddle_operator.apis.errors import InvalidArguments

SAME = {"train_batch_size": "--global-batch-size", "gradient_clipping": "--clip-grad"}
LEFT_OUT = {
    "train_micro_batch_size_per_gpu": CHOSEN,
    "gradient_accumulation_steps": CHOSEN,
    "zero_optimization": CHOSEN,
    "zero_allow_untested_optimizer": CHOSEN,
    "activation_checkpointing": CHOSEN,
    "pipeline": CHOSEN,
    "communication_data_type": "gradients are summed in fp32",
    "prescale_gradients": "gradients are weighted by samples",
    "steps_per_print": "measurements are always in the output folder",
    "wall_clock_breakdown": "measurements are always in the output folder",
    "tensorboard": "measurements are always in the output folder",
    "wandb": "measurements are always in the output folder",
    "flops_profiler": "MFU is measured at each step",
    "data_efficiency": "every sample is as long as the job says",
}
PARAMETERS = {"lr": "--lr", "eps": "--adam-eps", "weight_decay": "--weight-decay"}
MOST_POWER = 127  # of 2, that fp32 holds
Said = dict[str, tuple[str, ...]]


def said_by_deepspeed(config: Mapping[str, Any]) -> tuple[Said, list[str]]:
    """(what it says in Megatron's words, a sentence for each thing that is left out).

    Raises:
        InvalidArguments: it asks for what would train something else.
    """
    said: Said = {}
    notes: list[str] = []
    for key, value in config.items():
        if key in SAME:
            said[SAME[key]] = (_number(key, value),)
        elif key in ("fp16", "bf16"):
            said |= _precision(key, _mapping(key, value), notes)
        elif key == "optimizer":
            said |= _optimizer(_mapping(key, value), notes)
        elif key == "scheduler":
            raise InvalidArguments(
                "ds_config.json has a scheduler; say it in Megatron's arguments (--lr-decay-style, "
                "--lr-warmup-iters) and leave it out there",
                field="scheduler",
                code="Unsupported",
            )
        else:
            reason = LEFT_OUT.get(key, "this key is not known here, and left out")
            notes.append(f"ds_config.json {key}: {reason}")
    return said, notes


def _precision(key: str, value: Mapping[str, Any], notes: list[str]) -> Said:
    enabled = value.get("enabled", False)
    if not isinstance(enabled, bool):
        raise _malformed(f"{key}.enabled", enabled, "true or false")
    if not enabled:
        return {}
    said: Said = {f"--{key}": ()}
    if value.get("loss_scale"):
        raise InvalidArguments(
            f"ds_config.json {key}.loss_scale is {value['loss_scale']}; Heddle's is dynamic, say 0",
            field="loss_scale",
            code="Unsupported",
        )
    if "initial_scale_power" in value:
        power = value["initial_scale_power"]
        if not isinstance(power, int) or not 0 <= power <= MOST_POWER:
            raise _malformed(
                f"{key}.initial_scale_power", power, f"a whole number from 0 to {MOST_POWER}"
            )
        said["--initial-loss-scale"] = (str(2**power),)
    if "loss_scale_window" in value:
        window = _number(f"{key}.loss_scale_window", value["loss_scale_window"])
        said["--loss-scale-window"] = (window,)
    notes += [
        f"ds_config.json {key}.{name}: the loss scale halves at each overflow"
        for name in ("hysteresis", "min_loss_scale", "consecutive_hysteresis")
        if name in value
    ]
    return said


def _optimizer(value: Mapping[str, Any], notes: list[str]) -> Said:
    if not value:
        return {}
    kind = str(value.get("type", "AdamW"))
    said: Said = {"--optimizer": (kind.lower(),)}
    for name, given in _mapping("optimizer.params", value.get("params")).items():
        where = f"optimizer.params.{name}"
        if name in PARAMETERS:
            said[PARAMETERS[name]] = (_number(where, given),)
        elif name == "betas":
            if not isinstance(given, list) or len(given) != 2:
                raise _malformed(where, given, "a list of two numbers")
            betas = [_number(where, beta) for beta in given]
            said |= {f"--adam-beta{i + 1}": (beta,) for i, beta in enumerate(betas)}
        else:
            notes.append(f"ds_config.json optimizer.params.{name}: the update is Heddle's own")
    return said


def _mapping(key: str, value: object) -> Mapping[str, Any]:
    """The value of a key that holds others; nothing where it is null."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _malformed(key, value, "an object")
    return value


def _number(key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _malformed(key, value, "a number")
    return str(value)


def _malformed(key: str, value: object, wanted: str) -> InvalidArguments:
    return InvalidArguments(
        f"ds_config.json has {key} {reprlib.repr(value)}; write {wanted}",
        field=key.rpartition(".")[2],
        code="Malformed",
    )
