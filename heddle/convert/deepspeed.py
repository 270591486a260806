"""DeepSpeed's configuration in Megatron's words, and what of it has no counterpart."""

from __future__ import annotations

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
            said[SAME[key]] = (str(value),)
        elif key in ("fp16", "bf16"):
            said |= _precision(key, value, notes)
        elif key == "optimizer":
            said |= _optimizer(value, notes)
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
    if not value.get("enabled", False):
        return {}
    said: Said = {f"--{key}": ()}
    if value.get("loss_scale"):
        raise InvalidArguments(
            f"ds_config.json {key}.loss_scale is {value['loss_scale']}; Heddle's is dynamic, say 0",
            field="loss_scale",
            code="Unsupported",
        )
    if "initial_scale_power" in value:
        said["--initial-loss-scale"] = (str(2 ** int(value["initial_scale_power"])),)
    if "loss_scale_window" in value:
        said["--loss-scale-window"] = (str(value["loss_scale_window"]),)
    notes += [
        f"ds_config.json {key}.{name}: the loss scale halves at each overflow"
        for name in ("hysteresis", "min_loss_scale", "consecutive_hysteresis")
        if name in value
    ]
    return said


def _optimizer(value: Mapping[str, Any], notes: list[str]) -> Said:
    kind = str(value.get("type", "AdamW"))
    said: Said = {"--optimizer": (kind.lower(),)}
    for name, given in value.get("params", {}).items():
        if name in PARAMETERS:
            said[PARAMETERS[name]] = (str(given),)
        elif name == "betas":
            said |= {f"--adam-beta{i + 1}": (str(beta),) for i, beta in enumerate(given)}
        else:
            notes.append(f"ds_config.json optimizer.params.{name}: the update is Heddle's own")
    return said
