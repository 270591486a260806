"""Steps that grow: the live plan once more as a new epoch, whose ranks train further.

Invariant: a job that has to leave GPUs leaves them first; the plan of that move brings the steps
along, as every adopted plan does.
"""

from __future__ import annotations

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.policy.failures import failed_attempt, retry_left_s
from heddle_operator.policy.gain import backoff_s
from heddle_operator.state.actions import AdoptPlan, RecordEvent
from heddle_operator.state.decision import Decision
from heddle_operator.state.settings import Settings
from heddle_operator.state.snapshot import EpochRecord, Observed


def growth_pause_s(
    job: HeddleJob, observed: Observed, live: EpochRecord, now: float, settings: Settings
) -> float | None:
    """Seconds until the steps may grow, at most 0 for now; None where they need not.

    Args:
        job: supplies the steps that are wanted.
        observed: supplies the attempts that failed.
        live: the epoch that trains, of which no GPU is lost or has to be left.
        now: by the clock of the records.
        settings: limit the pause.
    """
    if live.steps is None or live.steps >= job.spec.steps:
        return None
    ended_s = observed.epochs[-1].closed_s
    pause_s = (now if ended_s is None else ended_s) + backoff_s(observed.epochs, settings) - now
    failed = failed_attempt(observed.epochs, live.plan, now)
    return pause_s if failed is None else max(pause_s, retry_left_s(failed, now))


def let_steps_grow(job: HeddleJob, observed: Observed, live: EpochRecord) -> Decision:
    """Adopt the live plan once more, with the steps that the job wants now."""
    reason = f"steps grow from {live.steps} to {job.spec.steps}; the plan is the same"
    adopt = AdoptPlan(
        *(observed.next_epoch, live.plan, "join", live.composition, live.step_s),
        steps=job.spec.steps,
        in_haste=live.in_haste,
    )
    event = RecordEvent(f"adopted-{adopt.epoch}", "PlanSelected", f"epoch {adopt.epoch}: {reason}")
    return Decision((adopt, event), "Preparing", reason)
