"""Jobs as people read them: a table of all, a page about one.

Pure: from HeddleJob objects to lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from heddle.cli.stalls import stall_words
from heddle.cli.tables import aligned
from planner.wording import counted

COLUMNS = ("NAMESPACE", "NAME", "PHASE", "EPOCH", "GPUS", "STEP", "LAST SAVE", "PLAN")
AGES = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def table(jobs: Iterable[Mapping[str, Any]], now: datetime) -> list[str]:
    """One line for each job, and a head.

    Args:
        jobs: as the API server has them.
        now: by which ages are told.
    """
    return aligned(COLUMNS, [_row(job, now) for job in jobs]).split("\n")


def page(job: Mapping[str, Any]) -> list[str]:
    """Everything about one job."""
    status = job.get("status") or {}
    metadata = job["metadata"]
    lines = [
        f"{metadata.get('namespace', 'default')}/{metadata['name']}: "
        f"{status.get('phase', 'not seen by an operator yet')}",
    ]
    if status.get("message"):
        lines.append(f"  {status['message']}")
    progress, plan = status.get("progress") or {}, status.get("plan")
    if progress:
        loss = f", loss {progress['loss']:g}" if progress.get("loss") is not None else ""
        pace = f", {progress['stepSeconds']:g} s a step" if "stepSeconds" in progress else ""
        lines.append(f"  step {progress.get('step', 0)} of {progress.get('steps')}{loss}{pace}")
        lines += _measured(progress, plan or {})
    if plan:
        lines.append(
            f"  epoch {status['epoch']} ({plan['reason']}): {plan['summary']} on "
            f"{counted(status['activeGPUs'], 'GPU')} of {_nodes(status)}"
        )
    for gpu_type, speed in (status.get("typeSpeeds") or {}).items():
        lines.append(f"  GPU type {gpu_type} computes at {speed:g} of its profile's speed")
    if "usableGPUs" in status:
        granted, usable = status.get("grantedGPUs", 0), status["usableGPUs"]
        verb = "is" if usable == 1 else "are"
        lines.append(f"  {counted(usable, 'GPU')} {verb} usable, its pods hold {granted}")
    holders = status.get("holders")
    if holders:
        lines.append(
            f"  every piece of the state is on at least {counted(holders['minNodes'], 'node')}, "
            f"{counted(holders['singlePieces'], 'piece')} on one node only"
        )
    lines += _checkpoints(status.get("checkpoint") or {})
    last = status.get("lastReconfiguration")
    if last:
        words = stall_words(last["stallSeconds"], last["parts"])
        lines.append(f"  last change: epoch {last['epoch']} ({last['reason']}), {words}")
    lines += ["  conditions:"] if status.get("conditions") else []
    for condition in status.get("conditions") or ():
        message = f": {condition['message']}" if condition["message"] else ""
        lines.append(
            f"    {condition['type']} {condition['status']} ({condition['reason']}){message}"
        )
    return lines


def _checkpoints(saved: Mapping[str, Any]) -> list[str]:
    """The newest checkpoint, and the newest start from one."""
    lines = []
    if "step" in saved:
        lines.append(
            f"  last checkpoint: step {saved['step']} at {saved['savedAt']}, "
            f"{saved['bytes'] / 1e6:,.1f} MB in {saved['seconds']:g} s"
        )
    if "bestStep" in saved:
        lines.append(
            f"  best checkpoint: step {saved['bestStep']}, held-out loss "
            f"{saved['bestHeldOutLoss']:g}"
        )
    if "restoredStep" in saved:
        lost = counted(saved.get("lostSteps", 0), "step")
        lines.append(
            f"  epoch {saved['restoredEpoch']} went on from the checkpoint of step "
            f"{saved['restoredStep']}; {lost} lost so far"
        )
    return lines


def _measured(progress: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    """Figures of the newest step beside its loss and its time, on one line."""
    words = []
    if "tokensPerSecond" in progress:
        words.append(f"{progress['tokensPerSecond']:,.0f} tokens/s")
    if "mfu" in progress:
        words.append(f"MFU {100 * progress['mfu']:.1f} %")
    if "learningRate" in progress:
        words.append(f"learning rate {progress['learningRate']:.3g}")
    if "gradientNorm" in progress:
        words.append(f"gradient norm {progress['gradientNorm']:.3g}")
    if progress.get("lossScale", 1) != 1:
        words.append(f"loss scale {progress['lossScale']:g}")
    if "memoryBytes" in progress:
        planned = plan.get("predictedMemoryBytes")
        foreseen = f" ({planned / 1e9:.2f} GB predicted)" if planned else ""
        words.append(f"up to {progress['memoryBytes'] / 1e9:.2f} GB a rank{foreseen}")
    return [f"  {', '.join(words)}"] if words else []


def _nodes(status: Mapping[str, Any]) -> str:
    """The nodes that the status names, and how many more there are."""
    names = ", ".join(status["nodes"])
    more = status.get("nodeCount", 0) - len(status["nodes"])
    return f"{names} and {more} more" if more > 0 else names


def _age(time_text: str | None, now: datetime) -> str:
    """The age of a time in its largest unit, as kubectl writes it; `-` without a time."""
    if time_text is None:
        return "-"
    seconds = max(0, int((now - datetime.fromisoformat(time_text)).total_seconds()))
    return next((f"{seconds // size}{unit}" for unit, size in AGES if seconds >= size), "0s")


def _row(job: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    status, metadata = job.get("status") or {}, job["metadata"]
    progress = status.get("progress") or {}
    steps = f"{progress.get('step', 0)}/{job.get('spec', {}).get('steps', '?')}"
    return (
        metadata.get("namespace", "default"),
        metadata["name"],
        status.get("phase", "-"),
        str(status.get("epoch", "-")),
        str(status.get("activeGPUs", "-")),
        steps,
        _age((status.get("checkpoint") or {}).get("savedAt"), now),
        (status.get("plan") or {}).get("summary", "-"),
    )
