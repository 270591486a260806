"""Last sentences of a run of a user's job; pure, from its result to sentences."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heddle.train.unsaved import as_parts
from planner.wording import counted


def summary(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Steps, speed, lost saves and place of the weights, in sentences."""
    found = (
        _trained(result),
        _pace(result),
        _failed_save(result),
        _where_it_goes_on(result) or _where_weights_are(result),
    )
    return tuple(sentence for sentence in found if sentence)


def _trained(result: Mapping[str, Any]) -> str:
    losses, begun = result["losses"], result["begun_from_step"]
    if not losses and begun is not None and result["phase"] == "Complete":
        return f"No step was left to train: the run went on from the checkpoint of step {begun}."
    if not losses:
        return "This run trained no step."
    changes = [epoch for epoch in result["epochs"] if epoch["reconfiguration"]]
    reasons = f" ({', '.join(epoch['reason'] for epoch in changes)})" if changes else ""
    after = f" after step {begun}" if begun is not None else ""
    trained = (
        f"The job trained {counted(len(losses), 'step')}{after} and changed its plan "
        f"{counted(len(changes), 'time')}{reasons}; the loss went from {losses[0]:.3f} to "
        f"{losses[-1]:.3f}."
    )
    held_out = result["held_out"]
    if len(held_out) > 1:
        first, newest = held_out[0], held_out[-1]
        trained += (
            f" On the held-out part it went from {first['loss']:.3f} (step {first['step']}) to "
            f"{newest['loss']:.3f} (step {newest['step']})."
        )
    return trained


def _pace(result: Mapping[str, Any]) -> str:
    """Speed and memory of the last plan; "" where no step was trained."""
    if not result["epochs"]:
        return ""
    last = result["epochs"][-1]
    paces = []
    if last["step_s"]:
        kind = "emulated" if result["emulated"] else "predicted"
        paces.append(
            f"A step of the last plan took {last['step_s']:.3f} s in the median "
            f"({last['predicted_step_s']:.3f} s {kind})."
        )
    measured = last["measured"]
    if "memory_bytes" in measured:
        paces.append(
            f"It trained {measured.get('tokens_per_s', 0):,.0f} tokens/s"
            + (f" at an MFU of {100 * measured['mfu']:.1f} %" if "mfu" in measured else "")
            + f"; a rank held up to {measured['memory_bytes'] / 1e6:,.0f} MB, Python and torch "
            f"with it; the plan foresaw {last['predicted_memory_bytes'] / 1e6:,.0f} MB."
        )
    return " ".join(paces)


def _failed_save(result: Mapping[str, Any]) -> str:
    """The newest save, if it failed; else ""."""
    failed = result["failed_save"]
    if failed is None:
        return ""
    return f"The checkpoint of step {failed['step']} is not saved: {failed['error']}."


def _where_it_goes_on(result: Mapping[str, Any]) -> str:
    """The checkpoint of a run that Ctrl-C ended; "" for any other."""
    saved = result["checkpoint"]
    if result["phase"] != "Suspended" or saved is None:
        return ""
    megabytes = saved["bytes"] / 1e6
    rate = megabytes / saved["seconds"] if saved["seconds"] else 0.0
    folder = saved["folder"]
    return (
        f"The state after step {saved['step']} is in {folder} ({megabytes:,.1f} MB in "
        f"{saved['seconds']:.1f} s, {rate:,.0f} MB/s). The same command goes on from there; "
        f"`heddle checkpoint export {shlex.quote(folder)} FOLDER` writes its weights as a model."
    )


def _where_weights_are(result: Mapping[str, Any]) -> str:
    if result["output"]:
        return f"The weights are in {result['output']}."
    if result["parts"]:
        kept = as_parts(Path(result["parts"]).parent)
        return f"{kept[0].upper()}{kept[1:]}."
    saved = result["goes_on_from"]
    if saved is None:
        return "No weights are saved, and no checkpoint: the same command begins anew with --fresh."
    return (
        "No weights are saved. The same command goes on from the checkpoint of step "
        f"{saved['step']} in {saved['folder']}."
    )
