"""The conditions of a HeddleJob: what holds of it now, each with one word and one sentence of why.

Invariant: all conditions are always listed; a time changes only with the status of its condition.
Source: Kubernetes' API conventions (conditions).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.apis.wording import shortened
from heddle_operator.epochs.ending import output_failure
from heddle_operator.epochs.gathering import start_trouble
from heddle_operator.rules.candidates import joining_nodes
from heddle_operator.rules.drain import Drain
from heddle_operator.rules.failures import LeftOut, device_failure, nodes_left_out
from heddle_operator.state.decision import Decision, Phase
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.reachability import is_starting
from heddle_operator.state.reasons import DEVICE_REASONS, DecisionReason
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import Observed
from heddle_operator.state.speeds.node_speed import slow_in_plan
from planner.wording import counted, joined

NODES_NAMED = 5  # that one sentence names
SUMMARY_BYTES = 512  # of the templates of a plan, of which there may be many
MOVING = ("Preparing", "Switching", "Recovering")
ConditionType = Literal[
    "Ready",
    "Accepted",
    "Planned",
    "Running",
    "Reconfiguring",
    "Degraded",
    "NodesLeftOut",
    "DeviceReady",
    "DrainBlocked",
    "CheckpointStale",
    "Diverged",
    "Complete",
    "Failed",
    "Stalled",
]
ConditionReason = (
    Phase
    | Literal[
        "Valid",
        "InvalidSpec",
        "PlanAdopted",
        "NoPlan",
        "Training",
        "Settled",
        "NothingLeftOut",
        "GPUsDivided",
        "JoinedLately",
        "NameTaken",
        "NewerRecord",
        "ConfigMapMissing",
        "EarlierJobRemains",
        "JobDeleted",
        "OperatorFailed",
        "ObjectRefused",
        "RecordRefused",
        "AgentNotUnderstood",
        "AgentUnreachable",
        "TooFewHolders",
        "PodMustLeave",
        "Healthy",
        "JobNeedsNode",
        "NothingBlocked",
        "SaveFailed",
        "Saved",
        "NothingToSave",
        "SlowRanks",
        "NodeSlow",
        "NotFinite",
        "Finite",
        "NeverRunOnGPU",
        "OnProcessor",
        "NotReported",
    ]
    | DecisionReason
)


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

    kind: ConditionType
    holds: bool
    reason: ConditionReason
    message: str


def conditions_of(
    view: View,
    decision: Decision,
    holders: HolderCount | None,
    drain: Drain,
    skipped_steps: int,
    refusal: str,
) -> tuple[Condition, ...]:
    """All conditions of a job that is followed.

    Args:
        view: the look that is decided on.
        decision: what was decided.
        holders: of the live plan.
        drain: what a drain of its nodes may do now.
        skipped_steps: whose loss or norm was not finite.
        refusal: what is wrong with its spec, and what holds meanwhile; "" where it is accepted.
    """
    observed = view.observed
    phase, message = decision.phase, decision.message
    why: ConditionReason = decision.reason or phase
    live = live_record(observed)
    pending = view.situation.pending
    trouble = start_trouble(pending, observed) if pending else ""
    ended = phase in ("Complete", "Failed")
    trains = not ended and _trains(observed)
    planned = live or view.situation.live or pending
    degraded = None if ended else _degraded(view, decision, holders, trouble)
    blocked = "" if ended else drain.blocked
    return (
        _ready(decision, trains, refusal),
        _accepted(view.job, refusal),
        Condition(
            "Planned",
            planned is not None,
            "PlanAdopted" if planned else decision.reason or "NoPlan",
            summary_of(planned) if planned else message,
        ),
        Condition(
            "Running",
            trains,
            "Training" if trains else why,
            f"epoch {live.epoch} trains" if trains and live else message,
        ),
        Condition(
            "Reconfiguring",
            phase in MOVING,
            "PodsCannotStart" if trouble else why if phase in MOVING else "Settled",
            message,
        ),
        degraded or Condition("Degraded", False, "Healthy", ""),
        _left_out(view, ended),
        _device_ready(view, ended),
        Condition(
            "DrainBlocked", bool(blocked), "JobNeedsNode" if blocked else "NothingBlocked", blocked
        ),
        _stale(view, ended),
        _diverged(observed, decision, skipped_steps),
        Condition("Complete", phase == "Complete", phase, message if phase == "Complete" else ""),
        Condition(
            "Failed",
            phase == "Failed",
            why if phase == "Failed" else phase,
            message if phase == "Failed" else "",
        ),
        stalled(phase == "Failed", why, message),
    )


def _ready(decision: Decision, trains: bool, refusal: str) -> Condition:
    """Whether the job does what its newest spec asks; kstatus and `helm --wait` read it."""
    if refusal:
        return Condition("Ready", False, "InvalidSpec", refusal)
    if decision.phase == "Complete":
        return Condition("Ready", True, "Complete", decision.message)
    if trains:
        return Condition("Ready", True, "Training", "")
    return Condition("Ready", False, decision.reason or decision.phase, decision.message)


def stalled(stalls: bool, why: ConditionReason, message: str) -> Condition:
    """Whether the job goes no further by itself; kstatus takes it for failed then."""
    return Condition("Stalled", stalls, why if stalls else "Settled", message if stalls else "")


def _accepted(job: HeddleJob, refusal: str) -> Condition:
    if refusal:
        return Condition("Accepted", False, "InvalidSpec", refusal)
    return Condition("Accepted", True, "Valid", "; ".join(("the job can be run", *job.notes)))


def live_record(observed: Observed) -> EpochRecord | None:
    """The newest epoch that trains, or that ended the job."""
    lived = [r for r in observed.epochs if r.is_left or r.outcome in ("live", "complete", "failed")]
    return lived[-1] if lived and not lived[-1].is_left else None


def summary_of(record: EpochRecord) -> str:
    """The plan of an epoch in a few words."""
    return shortened(", ".join(map(str, record.plan.templates)), SUMMARY_BYTES)


def with_times(
    conditions: tuple[Condition, ...], before: Mapping[str, Any], generation: int, now_text: str
) -> list[dict[str, Any]]:
    """Conditions as Kubernetes lists them, each with the time at which it last changed.

    Args:
        conditions: as they are now.
        before: the status that is there now.
        generation: of the spec that they are about.
        now_text: the time, as Kubernetes writes it.
    """
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


def _left_out(view: View, ended: bool) -> Condition:
    """Nodes on which pods did not start, whose GPUs are not whole, or that joined too lately."""
    observed = view.observed
    nodes, unusable = ((), ()) if ended else (nodes_left_out(view), observed.unusable)
    failed = [f"{out.node}: {out.sentence}; {_until(out, observed)}" for out in nodes]
    divided = [f"{name}: it {why}" for name, why in unusable if name in observed.divided]
    joining = [
        f"{name}: it joined lately; joinDebounceSeconds lets it be used at "
        f"{time_text(until_s + observed.clock_offset_s)}"
        for name, until_s in (() if ended else joining_nodes(view))
    ]
    named = [*failed, *divided, *joining]
    if not named:
        return Condition("NodesLeftOut", False, "NothingLeftOut", "")
    more = len(named) - NODES_NAMED
    words = ". ".join(named[:NODES_NAMED]) + (f". And {more} more" if more > 0 else "")
    why: ConditionReason = (
        "PodsCannotStart" if failed else "GPUsDivided" if divided else "JoinedLately"
    )
    return Condition("NodesLeftOut", True, why, words)


def _device_ready(view: View, ended: bool) -> Condition:
    """Whether ranks train on the devices of their pods, over the wire that these report."""
    observed, failed = view.observed, None if ended else device_failure(view)
    if failed is not None:
        return Condition("DeviceReady", False, DEVICE_REASONS[failed.kind], failed.sentence)
    wires = sorted({r.wire for r in observed.reports.values() if r.wire is not None} - {"gloo"})
    if wires:
        words = f"ranks use GPUs over {joined(wires)}; Heddle has never run on a GPU before"
        return Condition("DeviceReady", _trains(observed), "NeverRunOnGPU", words)
    if any(report.wire == "gloo" for report in observed.reports.values()):
        return Condition("DeviceReady", True, "OnProcessor", "ranks use the processors of pods")
    return Condition("DeviceReady", False, "NotReported", "")


def _until(out: LeftOut, observed: Observed) -> str:
    at = time_text(out.until_s + observed.clock_offset_s)
    return f"at most {counted(out.gpus, 'GPU')} until {at}" if out.gpus else f"tried again at {at}"


def time_text(unix_s: float) -> str:
    """A time of the wall clock, as Kubernetes writes times."""
    return datetime.fromtimestamp(round(unix_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _trains(observed: Observed) -> bool:
    return any(
        rank.phase == "training"
        for agent in observed.agents.values()
        if agent.report and agent.unreachable_since_s is None
        for rank in agent.report.ranks
    )


def _stale(view: View, ended: bool) -> Condition:
    """Whether the newest state that ranks tried to save is not saved."""
    if view.job.spec.checkpoint is None or ended:
        return Condition("CheckpointStale", False, "NothingToSave", "")
    failed = view.observed.saves.failed
    if failed is None:
        return Condition("CheckpointStale", False, "Saved", "")
    words = f"the checkpoint of step {failed.step} is not saved: {failed.error}"
    return Condition("CheckpointStale", True, "SaveFailed", words)


def _diverged(observed: Observed, decision: Decision, skipped_steps: int) -> Condition:
    """Whether the loss or the gradient norm is not a finite number any more."""
    newest = max(
        (record for agent in observed.agents.values() for record in agent.not_finite),
        key=lambda record: record.step,
        default=None,
    )
    values = (
        f"step {newest.step} has loss {newest.loss:g} and gradient norm {newest.gradient_norm:g}"
        if newest is not None
        else ""
    )
    if decision.reason == "Diverged":
        words = decision.message + (f"; {values}" if values else "")
        return Condition("Diverged", True, "NotFinite", words)
    if skipped_steps:
        verb = "was" if skipped_steps == 1 else "were"
        words = f"{counted(skipped_steps, 'step')} {verb} not finite" + (
            f"; {values}" if values else ""
        )
        return Condition("Diverged", True, "NotFinite", words)
    return Condition("Diverged", False, "Finite", "")


def _hindered(observed: Observed, trouble: str) -> Condition | None:
    """Obstacles between the job and the objects that it needs."""
    if not trouble and observed.template_problem:
        trouble = f"the cluster takes no pod of the job: {observed.template_problem}"
    if trouble:
        return Condition("Degraded", True, "PodsCannotStart", trouble)
    if observed.taken:
        return Condition("Degraded", True, "NameTaken", joined(observed.taken))
    if observed.unrecorded:
        return Condition("Degraded", True, "RecordRefused", observed.unrecorded)
    if observed.unprotected:
        return Condition("Degraded", True, "ObjectRefused", observed.unprotected)
    return None


def _degraded(
    view: View,
    decision: Decision,
    holders: HolderCount | None,
    trouble: str,
) -> Condition | None:
    """Cause that makes the job less safe or slower than it could be; else None."""
    observed = view.observed
    hindered = _hindered(observed, trouble)
    if hindered is not None:
        return hindered
    if decision.reason == "RecordUnread":
        return Condition("Degraded", True, "RecordUnread", decision.message)
    unwritten = output_failure(observed)
    if unwritten:
        return Condition("Degraded", True, "OutputFailed", unwritten)
    for agent in observed.agents.values():
        if agent.problem:
            words = f"pod {agent.pod}: {agent.problem}"
            return Condition("Degraded", True, "AgentNotUnderstood", words)
        starts = is_starting(observed, agent.pod, view.now, view.settings)
        if agent.unreachable_since_s is not None and not starts:
            words = f"the agent of pod {agent.pod} does not answer"
            return Condition("Degraded", True, "AgentUnreachable", words)
    if decision.slow:
        return Condition("Degraded", True, "SlowRanks", decision.slow)
    wanted = view.job.spec.elastic.min_holders
    if holders is not None and holders.min_nodes < wanted:
        words = (
            f"a part of the state is on {counted(holders.min_nodes, 'node')} only, minHolders is "
            f"{wanted}"
        )
        said = _said_of(live_record(observed), observed)
        return Condition("Degraded", True, "TooFewHolders", f"{words}{said}")
    noticed = next((pod for pod in observed.pods if pod.notice), None)
    if noticed is not None:
        words = f"pod {noticed.name} must leave: {noticed.notice}"
        return Condition("Degraded", True, "PodMustLeave", words)
    live = live_record(observed)
    slow = slow_in_plan(observed, live) if live else ""
    return Condition("Degraded", True, "NodeSlow", slow) if slow else None


def _said_of(live: EpochRecord | None, observed: Observed) -> str:
    """The planner's notes on wishes that a plan does not grant; "" where they are unknown."""
    found = (r.notes for r in observed.replies.values() if live is not None and r.plan == live.plan)
    notes = next(found, ())
    return f"; the planner says: {'; '.join(notes)}" if notes else ""
