"""What people are told of: the events of a decision.

Invariant: each has a key, so that what is decided again and again is told once.
Source: Kubernetes' API conventions (events have one-word reasons).
"""

from __future__ import annotations

from heddle_operator.actions import CloseEpoch, RecordEvent
from heddle_operator.decision import Decision
from heddle_operator.formation import start_trouble
from heddle_operator.snapshot import Observed

_REASONS = {
    "live": "ReconfigurationSucceeded",
    "aborted": "ReconfigurationAborted",
    "complete": "Complete",
    "failed": "Failed",
}


def events_of(observed: Observed, decision: Decision) -> tuple[RecordEvent, ...]:
    """Events that follow from a decision, beside those that it holds itself."""
    found = [_closing(action) for action in decision.actions if isinstance(action, CloseEpoch)]
    pending = next((r for r in reversed(observed.epochs) if r.outcome == "open"), None)
    trouble = start_trouble(pending, observed) if pending else ""
    if pending and trouble:
        key = f"trouble-{pending.epoch}-{trouble}"
        found.append(RecordEvent(key, "PodsCannotStart", f"epoch {pending.epoch}: {trouble}"))
    if decision.phase == "Pending" and decision.reason.startswith("waiting: "):
        found.append(RecordEvent(f"waiting-{decision.reason}", "InsufficientGPUs", decision.reason))
    return tuple(found)


def _closing(action: CloseEpoch) -> RecordEvent:
    return RecordEvent(
        f"closed-{action.epoch}-{action.outcome}", _REASONS[action.outcome], str(action)
    )
