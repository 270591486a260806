"""Modes Manual and Recommend: they change who decides when the job moves.

Invariant: no mode keeps a job on GPUs that it loses; a loss or a notice moves it in every mode.
Source: the modes of Kubernetes' VerticalPodAutoscaler are the model.
"""

from __future__ import annotations

from heddle_operator.rules.adoption.adopted import adopted
from heddle_operator.rules.failures import failed_attempt
from heddle_operator.rules.gain import Verdict
from heddle_operator.rules.gpu_limits import most_gpus
from heddle_operator.state.actions import AdoptPlan, RecordEvent
from heddle_operator.state.decision import Decision, Phase
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.plan_reply import PlanReply
from heddle_operator.state.situation import View
from planner.cluster.composition import Composition
from planner.plans.plan import Plan, faults
from planner.wording import counted
from worker.contract import Reason

LOOK_AGAIN_S = 5.0  # a ConfigMap that is not labelled as the job's is not watched


def adopt_referenced(
    view: View, composition: Composition, reason: Reason, live: EpochRecord | None
) -> Decision | None:
    """Mode Manual: move to the plan that `planRef` names, and to no other.

    Returns:
        None if the planner is to be asked: the job starts, and names no plan.
    """
    job, observed = view.job, view.observed
    referenced = observed.referenced
    phase: Phase = "Running" if live else "Pending"
    if job.spec.plan_ref is None:
        if live is None:
            return None
        kept = "the plan is kept: the mode is Manual, and planRef names no plan"
        return Decision(
            actions=(), phase="Running", message=kept, keeps_plan=True, reason="PlanKept"
        )
    if referenced is None:
        waits = f"the job waits for the plan in ConfigMap {job.spec.plan_ref}"
        return Decision(actions=(), phase=phase, message=waits, look_again_s=LOOK_AGAIN_S)
    plan = referenced.plan
    if live is not None and plan == live.plan:
        kept = f"the plan is kept: it is that of {referenced.source}"
        return Decision(
            actions=(),
            phase="Running",
            message=kept,
            look_again_s=LOOK_AGAIN_S,
            keeps_plan=True,
            reason="PlanKept",
        )
    problem = referenced.problem if plan is None else _why_unusable(plan, view, composition)
    if problem or plan is None:
        sentence = f"the plan of {referenced.source} cannot be used: {problem}"
        event = RecordEvent(f"plan-ref-{referenced.name}-{problem}", "PlanRefused", sentence)
        return Decision(
            actions=(event,),
            phase=phase,
            message=sentence,
            look_again_s=LOOK_AGAIN_S,
            reason="PlanRefused",
        )
    verb = "moves to" if live else "starts with"
    words = f"the job {verb} the plan of {referenced.source}"
    adopt = AdoptPlan(
        epoch=observed.next_epoch,
        plan=plan,
        reason=reason,
        composition=composition,
        steps=job.spec.steps,
    )
    return adopted(adopt, words)


def _why_unusable(plan: Plan, view: View, composition: Composition) -> str:
    """Why the job cannot move to a plan that its author chose; "" if it can."""
    job, observed = view.job, view.observed
    failed = failed_attempt(observed.epochs, plan, view.now)
    if failed is not None:
        return f"it failed in epoch {failed.epoch}: {failed.failures[0].sentence}"
    most = most_gpus(job, observed)
    if most is not None and plan.gpus > most:
        uses = counted(plan.gpus, "GPU")
        return f"it does not fit: it uses {uses}, the job may use {most}"
    found = faults(plan, job.workload, composition)
    return f"it does not fit: {found[0]}" if found else ""


def recommend(
    reply: PlanReply, composition: Composition, verdict: Verdict, again: float | None
) -> Decision:
    """Mode Recommend: say what would be done, and why."""
    assert reply.plan is not None
    shape = ", ".join(map(str, reply.plan.templates))
    gains = f"it gains {verdict.gain_percent:+.1f} %"
    why = gains if verdict.cause is None else f"the job keeps its own, and {verdict.cause.sentence}"
    sentence = f"a plan is recommended and not adopted (mode Recommend): {shape}; {why}"
    key = f"recommended-{composition.digest}-{reply.plan.digest}"
    event = RecordEvent(key, "PlanRecommended", sentence)
    return Decision(
        actions=(event,),
        phase="Running",
        message=sentence,
        look_again_s=again,
        reason="PlanRecommended",
    )
