"""Plans that the planner finds: asked for, compared with the live one, adopted or not.

Invariant: what was refused is said, with the gain that was too small.
"""

from __future__ import annotations

import math
from dataclasses import replace

from heddle_operator.rules.adoption.adopted import adopted, emergency_move
from heddle_operator.rules.adoption.modes import recommend
from heddle_operator.rules.adoption.occasion import Occasion
from heddle_operator.rules.attempts import keep_after_failure
from heddle_operator.rules.emergency import emergency_left_s, emergency_plan
from heddle_operator.rules.failures import (
    causes_of,
    device_failure,
    failed_attempt,
    failed_gpu_words,
)
from heddle_operator.rules.gain import (
    Verdict,
    backoff_s,
    expected_change_s,
    expected_stall_s,
    judge,
    quiet_left_s,
)
from heddle_operator.rules.gang import turn_left_s
from heddle_operator.rules.gpu_limits import gpu_limits, plan_request
from heddle_operator.rules.moves.causes import cause_of_move
from heddle_operator.state.actions import Action, AdoptPlan, RecordEvent
from heddle_operator.state.decision import Decision, sooner
from heddle_operator.state.plan_reply import PlanReply
from heddle_operator.state.reasons import DEVICE_REASONS, MoveCause
from planner.wording import joined
from worker.contract import resume_of


def ask(occasion: Occasion) -> Decision:
    """Ask for a plan and judge it, or make an emergency move where there is no time for that."""
    view, live, phase = occasion.view, occasion.live, occasion.phase
    observed, composition = view.observed, occasion.composition
    if live is None and observed.is_weighing:
        return Decision(
            actions=(),
            phase="Planning",
            message="the planner weighs the GPU types for the job",
            look_again_s=occasion.again,
        )
    current = live.plan if live else None
    request = plan_request(view.job, observed, composition, current, occasion.reason)
    reply = observed.replies.get(request.key)
    if occasion.reason == "drain" and live is not None:
        emergency_s = emergency_left_s(view, live, is_planned=reply is not None)
        if emergency_s <= 0 and (plan := emergency_plan(view, live, composition)):
            why = cause_of_move(view, live, occasion.leaving)
            return emergency_move(view.job, observed, live, plan, composition, why)
        in_time_s = emergency_s if 0 < emergency_s < math.inf else None
        occasion = replace(occasion, again=sooner(occasion.again, in_time_s))
    if reply is None:
        return Decision(
            actions=() if request.key in observed.planning else (request,),
            phase="Planning" if phase != "Running" else phase,
            message=f"the planner searches a plan for {request.gpus_on_nodes}",
            look_again_s=occasion.again,
        )
    if reply.plan is None:
        told = _no_plan(occasion, reply)
        return Decision(
            actions=(told,),
            phase=phase,
            message=f"there is no plan: {told.message}",
            look_again_s=occasion.again,
            reason="GPUFailed" if told.reason == "GPUFailed" else "InsufficientGPUs",
        )
    forced = None
    if live is not None and occasion.reason in ("drain", "loss"):
        forced = cause_of_move(view, live, occasion.leaving)
    return _judge(occasion, reply, forced)


def _no_plan(occasion: Occasion, reply: PlanReply) -> RecordEvent:
    """Tells once of each kind of cause, however often the nodes change."""
    view = occasion.view
    kind = "none" if reply.gpus else "failed"
    key = f"no-plan-{view.job.metadata.generation}-{view.observed.next_epoch}-{kind}"
    failed = failed_gpu_words(view)
    if failed:  # an earlier plan used them
        return RecordEvent(f"{key}-gpus", "GPUFailed", f"{joined(failed)}; {reply.problem}")
    return RecordEvent(key, "InsufficientGPUs", reply.problem)


def _judge(occasion: Occasion, reply: PlanReply, forced: MoveCause | None) -> Decision:
    """Adopt a plan that was found, unless the live one is kept or something must pass first."""
    view, reason, again = occasion.view, occasion.reason, occasion.again
    job, observed = view.job, view.observed
    live = occasion.live
    verdict = judge(
        reply,
        live.plan if live else None,
        forced,
        job.spec.elastic,
        expected_change_s(observed.epochs, view.now, view.settings),
        expected_stall_s(observed.stalls_s, view.settings),
    )
    assert reply.plan is not None
    if not verdict.adopts:
        return _kept(occasion, reply, verdict)
    failed = failed_attempt(observed.epochs, reply.plan, view.now) if reason == "join" else None
    if failed is not None:
        return keep_after_failure(failed, view.now, again)
    if job.spec.elastic.mode == "Recommend" and reason == "join":
        return recommend(reply, occasion.composition, verdict, again)
    wait_s, pause = _hold(occasion, verdict.skips_cooldown)
    if reason == "start":
        turn_s = turn_left_s(view, reply.plan)
        wait_s, pause = (turn_s, "job's start backoff") if turn_s > wait_s else (wait_s, pause)
    if wait_s > 0:
        failure = device_failure(view) if live is None else None
        sentence = failure.sentence if failure is not None else verdict.sentence
        return Decision(
            actions=(),
            phase=occasion.phase,
            message=f"{sentence}; the change begins after the {pause}",
            look_again_s=sooner(again, wait_s),
            reason=DEVICE_REASONS[failure.kind] if failure is not None else None,
        )
    adopt = AdoptPlan(
        epoch=observed.next_epoch,
        plan=reply.plan,
        reason=reason,
        composition=occasion.composition,
        step_s=reply.iteration_s,
        group_bytes=reply.group_bytes,
        cause=causes_of(view.situation),
        steps=job.spec.steps,
        max_gpus=gpu_limits(job, observed, occasion.composition).total,
        moved_by=verdict.cause.kind if verdict.cause else None,
    )
    goes_on = live is None and view.situation.left is not None
    sentence = "the job goes on from a checkpoint" if goes_on else verdict.sentence
    return adopted(adopt, sentence, again)


def _kept(occasion: Occasion, reply: PlanReply, verdict: Verdict) -> Decision:
    """The live plan is kept; it is said once for each composition that had another plan."""
    view, live, composition = occasion.view, occasion.live, occasion.composition
    again = occasion.again
    if verdict.pays_from_change_s is not None:
        pays_from_s = verdict.pays_from_change_s
        again = sooner(
            again, quiet_left_s(view.observed.epochs, view.now, pays_from_s, view.settings)
        )
    told: tuple[Action, ...] = ()
    if live is not None and (reply.plan, composition) != (live.plan, live.composition):
        key = f"kept-{live.epoch}-{composition.digest}"
        told = (RecordEvent(key, "PlanKept", verdict.sentence),)
    return Decision(
        actions=told,
        phase=occasion.phase,
        message=verdict.sentence,
        look_again_s=again,
        keeps_plan=True,
        reason="PlanKept",
    )


def _hold(occasion: Occasion, skips_cooldown: bool) -> tuple[float, str]:
    """Seconds that adoption must still wait, and for what.

    After aborts, and losses at one step, it waits for the backoff; where only gain asks for the
    change, for the cooldown.  An epoch that broke before it was on record as live has no end: the
    backoff counts from when the loss was seen.
    """
    view, reason, live = occasion.view, occasion.reason, occasion.live
    observed, now = view.observed, view.now
    since_s = observed.epochs[-1].closed_s if observed.epochs else None
    since_s = observed.recovering_since_s if since_s is None else since_s
    resume = (
        resume_of([holder.rank for holder in view.situation.holders]) if reason == "loss" else None
    )
    step = resume.step if resume else None
    wait_s = now if since_s is None else since_s
    wait_s += backoff_s(observed.epochs, view.settings, step) - now
    cools_down = reason == "join" and not skips_cooldown
    if cools_down and live is not None and live.epoch > 1 and live.closed_s is not None:
        cooldown_s = live.closed_s + view.job.spec.elastic.cooldown_seconds - now
        if cooldown_s > wait_s:
            return cooldown_s, "cooldown"
    return wait_s, "pause that follows a failed change"
