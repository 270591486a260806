"""Answer of `decide` and of each of its rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from heddle_operator.state.actions import Action
from heddle_operator.state.reasons import DecisionReason

Phase = Literal[
    "Pending",
    "Planning",
    "Preparing",
    "Switching",
    "Running",
    "Recovering",
    "Saving",
    "Suspending",
    "Suspended",
    "Complete",
    "Failed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Actions to take now.

    Attributes:
        phase: of the job.
        message: why, in words.
        look_again_s: decide again after so long even if nothing changes; None: only a change
            matters.
        keeps_plan: the live plan was held against what the cluster has now, and stays.
        slow: the ranks that the others wait for, and in which part, in words; "" for none.
        reason: why, for programs; None: the phase says it.
    """

    actions: tuple[Action, ...]
    phase: Phase
    message: str
    look_again_s: float | None = None
    keeps_plan: bool = False
    slow: str = ""
    reason: DecisionReason | None = None


def sooner(*times_s: float | None) -> float | None:
    """The earliest of several times from now; None where none is given."""
    given = [time_s for time_s in times_s if time_s is not None]
    return max(0.0, min(given)) if given else None
