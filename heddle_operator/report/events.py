"""The Events of a decision.

Invariant: each has a key, so that what is decided again and again is emitted once.
Source: Kubernetes' API conventions (events have one-word reasons).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.rules.drain import Drain
from heddle_operator.rules.gpu_limits import most_gpus
from heddle_operator.rules.starts import troubles
from heddle_operator.state.actions import CloseEpoch, EventReason, RecordEvent, RelatedObject
from heddle_operator.state.decision import Decision
from heddle_operator.state.epoch_record import EpochRecord, Outcome, StartFailure, newest_live
from heddle_operator.state.reasons import DEVICE_REASONS
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import Observed
from heddle_operator.state.speeds.node_speed import slow_nodes
from heddle_operator.state.speeds.type_speed import type_speeds

_REASONS: Mapping[Outcome, EventReason] = {
    "live": "ReconfigurationSucceeded",
    "aborted": "ReconfigurationAborted",
    "complete": "Complete",
    "failed": "Failed",
}
UNSEEN = (
    "the operator looks at some namespaces only: GPUs that pods of other namespaces hold are not "
    "seen, and count as free until the scheduler refuses a pod"
)


def events_of(view: View, decision: Decision, drain: Drain) -> tuple[RecordEvent, ...]:
    """Events that follow from a decision, beside those that it holds itself.

    Args:
        view: the look that was decided on.
        decision: with the actions that were done.
        drain: what a drain of the job's nodes may do now.
    """
    job, observed = view.job, view.observed
    live = newest_live(observed.epochs)
    closing = [action for action in decision.actions if isinstance(action, CloseEpoch)]
    found = [_closing(action) for action in closing if action.outcome in _REASONS]
    for action in closing:
        found += _left_out(action)
        found += _of_wires(action)
    pending = view.situation.pending
    trouble = next(iter(troubles(pending, observed)), None) if pending else None
    if pending and trouble:
        key = f"trouble-{pending.epoch}-{trouble.sentence}"
        said = f"epoch {pending.epoch}: {trouble.sentence}"
        found.append(RecordEvent(key, "PodsCannotStart", said, _node(trouble.node)))
    found += [RecordEvent(f"taken-{words}", "NameTaken", words) for words in observed.taken]
    if observed.unrecorded:
        key = f"unrecorded-{observed.unrecorded}"
        found.append(RecordEvent(key, "RecordRefused", observed.unrecorded))
    if observed.unprotected:
        key = f"unprotected-{observed.unprotected}"
        found.append(RecordEvent(key, "ObjectRefused", observed.unprotected))
    if decision.reason == "RecordUnread":
        found.append(RecordEvent(f"unread-{decision.message}", "RecordUnread", decision.message))
    odd = [record for agent in observed.agents.values() for record in agent.not_finite]
    if odd:
        first = min(odd, key=lambda record: record.step)
        said = f"step {first.step} has loss {first.loss:g}, gradient norm {first.gradient_norm:g}"
        found.append(RecordEvent(f"diverged-{first.step}", "Diverged", said))
    if decision.slow:
        found.append(RecordEvent(f"slow-{decision.slow}", "SlowRanks", decision.slow))
    found += _of_checkpoints(observed, decision)
    found += _of_nodes(job, observed, live)
    for gpu_type, speed in type_speeds(observed.nodes).items():
        said = f"GPU type {gpu_type} computes at {speed:g} of the speed that its profile says"
        found.append(RecordEvent(f"type-{said}", "TypeSpeedDiffers", f"{said}; plans count on it"))
    if live is not None and drain.blocked:
        key = f"blocked-{live.epoch}-{drain.blocked}"
        found.append(RecordEvent(key, "DrainBlocked", drain.blocked))
    return tuple(found)


def _of_checkpoints(observed: Observed, decision: Decision) -> Iterator[RecordEvent]:
    failed = observed.saves.failed
    if failed is not None:
        said = f"the checkpoint of step {failed.step} is not saved: {failed.error}"
        yield RecordEvent(f"unsaved-{failed.epoch}-{failed.step}", "CheckpointFailed", said)
    if decision.reason in ("CheckpointRefused", "CheckpointUnread", "CheckpointsDiffer"):
        yield RecordEvent(f"refused-{decision.message}", "CheckpointRefused", decision.message)


def _of_nodes(
    job: HeddleJob, observed: Observed, live: EpochRecord | None
) -> Iterator[RecordEvent]:
    for name, why in observed.unusable:
        if name in observed.divided and _concerns(name, job, observed, live):
            said = f"node {name} is left out: it {why}"
            yield RecordEvent(f"divided-{said}", "NodeLeftOut", said, _node(name))
    for node, words in slow_nodes(observed).items():
        if _concerns(node, job, observed, live):
            yield RecordEvent(f"slow-{words}", "NodeSlow", words, _node(node))
    for flap in observed.flaps:
        if _concerns(flap.node, job, observed, live):
            key = f"flaps-{flap.node}-{flap.began_s:.0f}-{flap.pause_s:g}"
            yield RecordEvent(key, "NodeFlaps", flap.words, _node(flap.node))


def _concerns(node: str, job: HeddleJob, observed: Observed, live: EpochRecord | None) -> bool:
    """Whether the job uses the node, or could use more GPUs than it has: others say nothing."""
    if live is None or node in live.plan.nodes:
        return True
    most = most_gpus(job, observed)
    return most is None or live.plan.gpus < most


def _left_out(action: CloseEpoch) -> list[RecordEvent]:
    """One event for each node on which pods of the epoch did not start."""
    return [
        RecordEvent(
            f"left-out-{action.epoch}-{failure.node}",
            "NodeLeftOut",
            f"{_what_follows(failure)}: {failure.sentence}",
            _node(failure.node),
        )
        for failure in action.start_failures
    ]


def _of_wires(action: CloseEpoch) -> list[RecordEvent]:
    """One event for a change that failed on the network between GPUs, or on the job's set-up."""
    kinds = ("setup", "fabric")
    failed = next((failure for failure in action.failures if failure.kind in kinds), None)
    if failed is None:
        return []
    key, (node, _) = f"{failed.kind}-{action.epoch}", failed.gpus[0]
    return [RecordEvent(key, DEVICE_REASONS[failed.kind], failed.sentence, _node(node))]


def _what_follows(failure: StartFailure) -> str:
    if failure.gpus < 2:
        return f"node {failure.node} is left out for some time"
    return f"node {failure.node} has no room for {failure.gpus} GPUs of the job"


def _node(name: str) -> RelatedObject:
    return RelatedObject("Node", name)


def _closing(action: CloseEpoch) -> RecordEvent:
    return RecordEvent(
        f"closed-{action.epoch}-{action.outcome}", _REASONS[action.outcome], str(action)
    )
