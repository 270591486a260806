"""From a picture and its decision to the status of a HeddleJob.

Invariant: written anew from what is seen.  The status before gives the times at which conditions
changed, and numbers that nobody measures now.  No decision on a plan reads it.
Source: Kubernetes' API conventions (conditions, observedGeneration).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.wording import shortened
from heddle_operator.epochs.restoring import restarts
from heddle_operator.report.conditions import (
    Condition,
    HolderCount,
    conditions_of,
    live_record,
    stalled,
    summary_of,
    time_text,
    with_times,
)
from heddle_operator.report.timings import Reconfiguration, reconfigurations
from heddle_operator.rules.drain import Drain
from heddle_operator.rules.gpu_limits import usable_gpus
from heddle_operator.state.decision import Decision
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import Observed
from heddle_operator.state.speeds.type_speed import type_speeds
from planner.model.shape import ModelShape
from planner.plans.pieces import node_counts
from planner.plans.plan import Plan
from worker.contract import SaveRecord, StepRecord

STATUS_BYTES = 8192  # of JSON, whatever the number and the names of nodes
LOSS_DIGITS = 6  # after the point
NAME_BYTES = 2048  # that names of nodes take of them
SENTENCE_BYTES = (1024, 512, 256)  # of each sentence: the first with which the status fits
Status = dict[str, Any]
# Why a job is not followed.
Refused = Literal["InvalidSpec", "NameTaken", "NewerRecord", "ObjectRefused"]
# For what it waits that comes by itself.
Waits = Literal["ConfigMapMissing", "EarlierJobRemains"]


def count_holders(model: ModelShape, plan: Plan) -> HolderCount:
    """On how many nodes the pieces of a plan's state live; costly for large plans."""
    counts = node_counts(model, plan).values()
    return HolderCount(min(counts), sum(count == 1 for count in counts))


def status_of(
    view: View,
    decision: Decision,
    holders: HolderCount | None,
    drain: Drain,
    before: Mapping[str, Any],
    now_text: str,
    refusal: str,
) -> Status:
    """The whole status.

    Args:
        view: the look that is decided on.
        decision: what was decided.
        holders: of the live plan.
        drain: what a drain of its nodes may do now.
        before: the status that is there now.
        now_text: the time, as Kubernetes writes it.
        refusal: see `conditions_of`.
    """
    job, observed = view.job, view.observed
    live = live_record(observed)
    known = before.get("progress") or {"step": 0, "steps": job.spec.steps}
    progress = _progress(job, observed, known) or known
    status: Status = {
        "observedGeneration": job.metadata.generation,
        "phase": decision.phase,
        "message": decision.message,
        "conditions": with_times(
            conditions_of(view, decision, holders, drain, progress.get("skippedSteps", 0), refusal),
            before,
            job.metadata.generation,
            now_text,
        ),
        "progress": progress,
        "usableGPUs": usable_gpus(job, observed),
        "grantedGPUs": sum(pod.gpus for pod in observed.pods if pod.phase != "ended"),
    }
    if live is not None:
        status |= {
            "epoch": live.epoch,
            "activeGPUs": live.plan.gpus,
            "nodes": _first_names(live.plan.nodes),
            "nodeCount": len(live.plan.nodes),
            "plan": _plan(live, observed),
        }
    elif view.situation.left is not None:  # what was true of the epoch that it left
        status |= {"activeGPUs": 0, "nodes": [], "nodeCount": 0, "plan": None, "holders": None}
    if holders is not None:
        status["holders"] = {"minNodes": holders.min_nodes, "singlePieces": holders.single}
    speeds = dict.fromkeys(before.get("typeSpeeds") or ())  # null takes what is normal again away
    if speeds := speeds | dict(type_speeds(observed.nodes)):
        status["typeSpeeds"] = speeds
    saved = _checkpoint(view, before.get("checkpoint") or {})
    if saved:
        status["checkpoint"] = saved
    changes = reconfigurations(observed)
    if changes:
        status["lastReconfiguration"] = _reconfiguration(changes[-1])
    elif "lastReconfiguration" in before:
        status["lastReconfiguration"] = before["lastReconfiguration"]
    return _fitted(status, before)


def _reconfiguration(last: Reconfiguration) -> Status:
    return {
        "epoch": last.epoch,
        "reason": last.reason,
        "stallSeconds": round(last.stall_s, 4),
        "parts": {name: round(part, 4) for name, part in last.parts.items()},
        "bytesMoved": last.bytes_moved,
    }


def refused_status(
    job_generation: int,
    sentence: str,
    before: Mapping[str, Any],
    now_text: str,
    reason: Refused = "InvalidSpec",
    trains: bool = False,
) -> Status:
    """The status of a job that cannot be run as it is written.

    Args:
        job_generation: of the spec that is refused.
        sentence: why.
        before: the status that is there now; its other conditions stay.
        now_text: the time, as Kubernetes writes it.
        reason: of the condition.
        trains: its pods do, though nobody follows them: its phase stays what it was.
    """
    conditions = (
        Condition("Ready", False, reason, sentence),
        Condition("Accepted", False, reason, sentence),
        stalled(not trains, reason, sentence),
    )
    stated = with_times(conditions, before, job_generation, now_text)
    said = {row["type"] for row in stated}
    others = [row for row in before.get("conditions") or () if row.get("type") not in said]
    status = {
        "observedGeneration": job_generation,
        "phase": before.get("phase", "Running") if trains else "Invalid",
        "message": sentence,
        "conditions": [*stated, *others],
    }
    return _fitted(status, before)


def waiting_status(
    job_generation: int,
    sentence: str,
    before: Mapping[str, Any],
    now_text: str,
    reason: Waits | Literal["OperatorFailed"],
) -> Status:
    """The status of a job that is not followed now, and is tried again by itself.

    It is not stalled, and whether it is accepted is not known yet.

    Args:
        job_generation: of its spec.
        sentence: why.
        before: the status that is there now; its other conditions stay, and its phase.
        now_text: the time, as Kubernetes writes it.
        reason: of the condition.
    """
    conditions = (Condition("Ready", False, reason, sentence), stalled(False, reason, sentence))
    stated = with_times(conditions, before, job_generation, now_text)
    rows = before.get("conditions") or ()
    others = [
        row
        for row in rows
        if row.get("type") not in ("Ready", "Stalled")
        and (row.get("type"), row.get("status")) != ("Accepted", "False")
    ]
    phase = before.get("phase", "Invalid")
    status = {
        "observedGeneration": job_generation,
        "phase": "Pending" if phase == "Invalid" else phase,
        "message": sentence,
        "conditions": [*stated, *others],
    }
    return _fitted(status, before)


def deleted_status(
    job_generation: int, finalizers: Sequence[str], before: Mapping[str, Any], now_text: str
) -> Status:
    """The status of a job that was deleted, and that finalizers of others hold.

    Args:
        job_generation: of its spec.
        finalizers: that it has.
        before: the status that is there now; its other conditions stay.
        now_text: the time, as Kubernetes writes it.
    """
    sentence = (
        f"the job is deleted and its pods end; it stays until its finalizers go: "
        f"{', '.join(finalizers)}"
    )
    conditions = (
        Condition("Ready", False, "JobDeleted", sentence),
        Condition("Running", False, "JobDeleted", sentence),
    )
    stated = with_times(conditions, before, job_generation, now_text)
    rows = before.get("conditions") or ()
    others = [row for row in rows if row.get("type") not in ("Ready", "Running")]
    return _fitted(
        {
            "observedGeneration": job_generation,
            "phase": "Terminating",
            "message": sentence,
            "conditions": [*stated, *others],
        },
        before,
    )


def _fitted(status: Status, before: Mapping[str, Any]) -> Status:
    """The status with sentences so short that the object takes at most `STATUS_BYTES` with it."""
    found = status
    for most in SENTENCE_BYTES:
        rows = [
            row | {"message": shortened(row.get("message", ""), most)}
            for row in status["conditions"]
        ]
        found = status | {"message": shortened(status["message"], most), "conditions": rows}
        if len(json.dumps({**before, **found}, ensure_ascii=False).encode()) <= STATUS_BYTES:
            break
    return found


def _first_names(names: Sequence[str]) -> list[str]:
    """As many as take at most `NAME_BYTES` of the object, in order."""
    sizes = accumulate(len(name) + len('"", ') for name in names)
    return [name for name, size in zip(names, sizes, strict=True) if size <= NAME_BYTES]


def _progress(job: HeddleJob, observed: Observed, known: Mapping[str, Any]) -> dict[str, Any]:
    reports = [agent.report for agent in observed.agents.values() if agent.report]
    if not any(report.ranks for report in reports):
        return {}  # nobody is there to ask: what was known before still holds
    step = max((rank.step for report in reports for rank in report.ranks), default=0)
    steps = [record for report in reports for record in report.steps]
    found: dict[str, Any] = {"step": step, "steps": job.spec.steps}
    if steps:
        last = max(steps, key=lambda record: (record.step, record.epoch))
        # Null takes the field away: JSON has no word for a loss that is not finite.
        loss = round(last.loss, LOSS_DIGITS) if math.isfinite(last.loss) else None
        found |= {"loss": loss, "stepSeconds": round(last.step_s, 4)} | _measured(last)
    evaluations = [record for report in reports for record in report.evaluations]
    if evaluations:
        newest = max(evaluations, key=lambda record: (record.step, record.epoch))
        loss = round(newest.loss, LOSS_DIGITS) if math.isfinite(newest.loss) else None
        found |= {"heldOutLoss": loss, "heldOutStep": newest.step}
    seen = {record.step for agent in observed.agents.values() for record in agent.not_finite}
    skipped = max(len(seen), known.get("skippedSteps", 0))
    if skipped:
        found["skippedSteps"] = skipped
    return found


def _checkpoint(view: View, known: Mapping[str, Any]) -> dict[str, Any]:
    """The newest whole checkpoint; what was known before holds where nobody tells."""
    saves, found = view.observed.saves, dict(known)
    if saves.newest is not None:
        found |= {
            "step": saves.newest.step,
            "savedAt": time_text(saves.newest_s + view.observed.clock_offset_s),
            "seconds": round(saves.newest.seconds, 3),
            "stallSeconds": round(saves.copy_s, 4),
            "bytes": saves.num_bytes,
            **_losses(saves.newest),
        }
    for epoch, step, lost in restarts(view.observed.epochs):
        if epoch > found.get("restoredEpoch", 0):
            known_lost = found.get("lostSteps", 0)
            found |= {"restoredEpoch": epoch, "restoredStep": step, "lostSteps": known_lost + lost}
    return found


def _losses(newest: SaveRecord) -> dict[str, float | None]:
    """Held-out losses that the newest save tells; null takes that of the save before away."""
    loss, best = newest.held_out_loss, newest.best
    found: dict[str, float | None] = {
        "heldOutLoss": round(loss, LOSS_DIGITS) if loss is not None else None,
        "bestStep": best.step if best is not None else None,
        "bestHeldOutLoss": round(best.held_out_loss, LOSS_DIGITS) if best is not None else None,
    }
    return found


def _measured(step: StepRecord) -> dict[str, Any]:
    """Further figures of the newest step; absent ones, and ones without JSON form, are left out."""
    values = {
        "gradientNorm": step.gradient_norm,
        "learningRate": step.learning_rate,
        "lossScale": step.loss_scale,
        "tokensPerSecond": step.tokens_per_s,
        "mfu": step.mfu,
        "memoryBytes": step.memory_bytes,
    }
    known = {key: value for key, value in values.items() if value is not None}
    return {
        key: value if isinstance(value, int) else float(f"{value:.6g}")
        for key, value in known.items()
        if math.isfinite(value)
    }


def _plan(live: EpochRecord, observed: Observed) -> dict[str, Any]:
    found: dict[str, Any] = {
        "digest": live.plan.digest,
        "summary": summary_of(live),
        "reason": live.reason,
        "cause": live.moved_by,  # null takes that of the plan before away
        "templates": len(live.plan.templates),
        "pipelines": sum(template.replicas for template in live.plan.templates),
    }
    for key, reply in observed.replies.items():  # the newest says it by the newest speeds
        if reply.plan == live.plan:
            found["predictedSamplesPerSecond"] = round(reply.throughput_samples_s, 3)
            found["predictedMemoryBytes"] = reply.memory_bytes
        elif key.current == live.plan.digest and reply.current_samples_s is not None:
            found["predictedSamplesPerSecond"] = round(reply.current_samples_s, 3)
    return found
