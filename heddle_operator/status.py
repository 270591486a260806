"""From a picture and its decision to the status of a HeddleJob.

Invariant: written anew from what is seen, never added to; only the times at which conditions
changed are taken from the status before.  Nothing reads it but people and tools.
Source: Kubernetes' API conventions (conditions, observedGeneration).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heddle_operator.api import HeddleJob
from heddle_operator.decision import Decision
from heddle_operator.formation import start_trouble
from heddle_operator.reconfiguration import reconfigurations
from heddle_operator.snapshot import EpochRecord, Observed
from planner.pieces import nodes_of_pieces
from planner.plan import Plan
from planner.workload import ModelShape

MOVING = ("Preparing", "Switching", "Recovering")
Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HolderCount:
    """How safe the state of a plan is.

    Attributes:
        min_nodes: the smallest number of nodes that any piece lives on.
        single: pieces that live on one node only.
    """

    min_nodes: int
    single: int


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a HeddleJob; `reason` is one word, `message` a sentence."""

    kind: str
    holds: bool
    reason: str
    message: str


def count_holders(model: ModelShape, plan: Plan) -> HolderCount:
    """On how many nodes the pieces of a plan's state live; costly for large plans."""
    counts = [len(nodes) for nodes in nodes_of_pieces(model, plan).values()]
    return HolderCount(min(counts), sum(count == 1 for count in counts))


def status_of(
    job: HeddleJob,
    observed: Observed,
    decision: Decision,
    holders: HolderCount | None,
    before: Mapping[str, Any],
    now_text: str,
) -> Status:
    """The whole status.

    Args:
        job: supplies generation, steps and limits.
        observed: the picture that was decided on.
        decision: what was decided.
        holders: of the live plan.
        before: the status that is there now.
        now_text: the time, as Kubernetes writes it.
    """
    live = live_record(observed)
    progress = (
        _progress(job, observed) or before.get("progress") or {"step": 0, "steps": job.spec.steps}
    )
    status: Status = {
        "observedGeneration": job.metadata.generation,
        "phase": decision.phase,
        "message": decision.reason,
        "conditions": with_times(
            _conditions(job, observed, decision, live, holders), before, job, now_text
        ),
        "progress": progress,
        "usableGPUs": sum(n.gpus for n in observed.nodes if n.leaving_at_s is None),
        "grantedGPUs": sum(pod.gpus for pod in observed.pods if pod.phase != "ended"),
    }
    if live is not None:
        status |= {
            "epoch": live.epoch,
            "activeGPUs": live.plan.gpus,
            "nodes": list(live.plan.nodes),
            "plan": _plan(live, observed),
        }
    if holders is not None:
        status["holders"] = {"minNodes": holders.min_nodes, "singlePieces": holders.single}
    changes = reconfigurations(observed)
    if changes:
        last = changes[-1]
        status["lastReconfiguration"] = {
            "epoch": last.epoch,
            "reason": last.reason,
            "stallSeconds": round(last.stall_s, 4),
            "parts": {name: round(part, 4) for name, part in last.parts.items()},
            "bytesMoved": last.bytes_moved,
        }
    elif "lastReconfiguration" in before:
        status["lastReconfiguration"] = before["lastReconfiguration"]
    return status


def refused_status(
    job_generation: int, sentence: str, before: Mapping[str, Any], now_text: str
) -> Status:
    """The status of a job that cannot be run as it is written."""
    conditions = (Condition("Accepted", False, "InvalidSpec", sentence),)
    stated = _with_times(conditions, before, job_generation, now_text)
    return {
        "observedGeneration": job_generation,
        "phase": "Invalid",
        "message": sentence,
        "conditions": stated,
    }


def live_record(observed: Observed) -> EpochRecord | None:
    """The newest epoch that trains, or that ended the job."""
    lived = [r for r in observed.epochs if r.outcome in ("live", "complete", "failed")]
    return lived[-1] if lived else None


def with_times(
    conditions: tuple[Condition, ...], before: Mapping[str, Any], job: HeddleJob, now_text: str
) -> list[dict[str, Any]]:
    """Conditions as Kubernetes lists them, each with the time at which it last changed."""
    return _with_times(conditions, before, job.metadata.generation, now_text)


def _with_times(
    conditions: tuple[Condition, ...], before: Mapping[str, Any], generation: int, now_text: str
) -> list[dict[str, Any]]:
    held = {c["type"]: c for c in before.get("conditions") or ()}
    rows = []
    for condition in conditions:
        status = "True" if condition.holds else "False"
        old = held.get(condition.kind, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        rows.append(
            {
                "type": condition.kind,
                "status": status,
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": generation,
                "lastTransitionTime": since or now_text,
            }
        )
    return rows


def _conditions(
    job: HeddleJob,
    observed: Observed,
    decision: Decision,
    live: EpochRecord | None,
    holders: HolderCount | None,
) -> tuple[Condition, ...]:
    phase, reason = decision.phase, decision.reason
    pending = next((r for r in reversed(observed.epochs) if r.outcome == "open"), None)
    trouble = start_trouble(pending, observed) if pending else ""
    ended = phase in ("Complete", "Failed")
    trains = not ended and any(
        rank.phase == "training"
        for view in observed.agents.values()
        if view.report and view.unreachable_since_s is None
        for rank in view.report.ranks
    )
    planned = live or pending
    degraded = _degraded(job, observed, holders, trouble) if not ended else ""
    return (
        Condition("Accepted", True, "Valid", "the job can be run"),
        Condition(
            "Planned",
            planned is not None,
            "PlanAdopted" if planned else "NoPlan",
            _summary(planned) if planned else reason,
        ),
        Condition("Running", trains, "Training" if trains else phase, reason),
        Condition(
            "Reconfiguring",
            phase in MOVING,
            "PodsCannotStart" if trouble else phase if phase in MOVING else "Settled",
            reason,
        ),
        Condition("Degraded", bool(degraded), "Degraded" if degraded else "Healthy", degraded),
        Condition("Complete", phase == "Complete", phase, reason if phase == "Complete" else ""),
        Condition("Failed", phase == "Failed", phase, reason if phase == "Failed" else ""),
    )


def _degraded(job: HeddleJob, observed: Observed, holders: HolderCount | None, trouble: str) -> str:
    """What makes the job less safe or slower than it could be, in a sentence; "" if nothing."""
    if trouble:
        return trouble
    for view in observed.agents.values():
        if view.problem:
            return f"pod {view.pod}: {view.problem}"
        if view.unreachable_since_s is not None:
            return f"the agent of pod {view.pod} does not answer"
    wanted = job.spec.elastic.min_holders
    if holders is not None and holders.min_nodes < wanted:
        return (
            f"{holders.single or 'some'} pieces of the state live on fewer than {wanted} nodes: "
            f"minHolders is {wanted}, {holders.min_nodes} is reached"
        )
    sick = next((pod for pod in observed.pods if pod.notice), None)
    return f"pod {sick.name} must be left: {sick.notice}" if sick else ""


def _progress(job: HeddleJob, observed: Observed) -> dict[str, Any]:
    reports = [view.report for view in observed.agents.values() if view.report]
    if not any(report.ranks for report in reports):
        return {}  # nobody is there to ask: what was known before still holds
    step = max((rank.step for report in reports for rank in report.ranks), default=0)
    steps = [record for report in reports for record in report.steps]
    found: dict[str, Any] = {"step": step, "steps": job.spec.steps}
    if steps:
        last = max(steps, key=lambda record: (record.step, record.epoch))
        found |= {"loss": round(last.loss, 6), "stepSeconds": round(last.end_s - last.start_s, 4)}
    return found


def _plan(live: EpochRecord, observed: Observed) -> dict[str, Any]:
    reply = next((r for r in observed.replies.values() if r.plan == live.plan), None)
    found: dict[str, Any] = {
        "digest": live.plan.digest,
        "summary": _summary(live),
        "reason": live.reason,
        "templates": len(live.plan.templates),
        "pipelines": sum(template.replicas for template in live.plan.templates),
    }
    if reply is not None:
        found["predictedSamplesPerSecond"] = round(reply.throughput_samples_s, 3)
    return found


def _summary(record: EpochRecord) -> str:
    return ", ".join(map(str, record.plan.templates))
