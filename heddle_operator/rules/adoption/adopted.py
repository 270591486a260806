"""Decisions that adopt a plan: one atomic write, with its Event."""

from __future__ import annotations

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.state.actions import AdoptPlan, RecordEvent
from heddle_operator.state.decision import Decision
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.reasons import MoveCause
from heddle_operator.state.snapshot import Observed
from planner.cluster.composition import Composition
from planner.plans.plan import Plan


def adopted(adopt: AdoptPlan, sentence: str, again: float | None = None) -> Decision:
    """The decision that adopts a plan."""
    words = f"epoch {adopt.epoch} ({adopt.reason}): {sentence}"
    event = RecordEvent(f"adopted-{adopt.epoch}", "PlanSelected", words)
    return Decision(actions=(adopt, event), phase="Preparing", message=sentence, look_again_s=again)


def more_steps(job: HeddleJob, observed: Observed, live: EpochRecord) -> Decision:
    """Adopt the live plan once more, with the steps that the job wants now."""
    sentence = f"steps grow from {live.steps} to {job.spec.steps}; the plan is the same"
    adopt = AdoptPlan(
        epoch=observed.next_epoch,
        plan=live.plan,
        reason="join",
        composition=live.composition,
        step_s=live.step_s,
        group_bytes=live.group_bytes,
        steps=job.spec.steps,
        is_emergency=live.is_emergency,
        max_gpus=live.max_gpus,
    )
    return adopted(adopt, sentence)


def emergency_move(
    job: HeddleJob,
    observed: Observed,
    live: EpochRecord,
    plan: Plan,
    composition: Composition,
    why: MoveCause,
) -> Decision:
    """Adopt the live plan without the replicas that must go; a better one is searched later."""
    sentence = f"the job moves in haste, by dropping replicas: {why.sentence}"
    adopt = AdoptPlan(
        epoch=observed.next_epoch,
        plan=plan,
        reason="drain",
        composition=composition,
        step_s=live.step_s,
        group_bytes=live.group_bytes,
        steps=job.spec.steps,
        is_emergency=True,
        moved_by=why.kind,
    )
    return adopted(adopt, sentence)
