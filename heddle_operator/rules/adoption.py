"""When to ask for a plan and when to adopt one: start, join, drain, loss.

Invariant: adoption is one atomic write; what was refused is said, with the gain that was too small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.rules.attempts import keep_after_failure, untried
from heddle_operator.rules.candidates import (
    debounce_left_s,
    leaving_reasons,
    ready_nodes,
    started_nodes,
    usable_nodes,
)
from heddle_operator.rules.emergency import (
    emergency_left_s,
    emergency_plan,
    joined_lately,
    nodes_after,
)
from heddle_operator.rules.failures import (
    causes_of,
    failed_attempt,
    nodes_left_out,
    retry_left_s,
)
from heddle_operator.rules.gain import (
    backoff_s,
    expected_change_s,
    expected_stall_s,
    judge,
    quiet_left_s,
)
from heddle_operator.rules.gang import turn_left_s
from heddle_operator.rules.gpu_limits import (
    allowed_gpus,
    causes_of_too_few,
    gpu_limits,
    left_by_quotas,
    most_gpus,
    plan_request,
    too_few_gpus,
)
from heddle_operator.rules.modes import adopt_referenced, recommend
from heddle_operator.rules.moves.causes import cause_of_move, loses_gpus
from heddle_operator.rules.moves.surplus import large_pod, surplus_words, without_pod
from heddle_operator.rules.partitions import without_partitioned
from heddle_operator.state.actions import Action, AdoptPlan, RecordEvent
from heddle_operator.state.decision import Decision, Phase, sooner
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.plan_reply import PlanReply
from heddle_operator.state.reasons import MoveCause
from heddle_operator.state.situation import View
from heddle_operator.state.snapshot import Observed
from planner.cluster.composition import Composition
from planner.plans.plan import Plan
from worker.contract import Reason, resume_of

TEMPLATE_S = 5.0  # a template that the cluster refuses is looked at again after so long


def consider_plan(view: View) -> Decision:
    """Keep the live plan, or ask for and adopt a better one; without a live plan, start."""
    job, observed = view.job, view.observed
    live = view.situation.live
    leaving = leaving_reasons(observed, live.hosts if live else ())
    reason, composition = _occasion(view, leaving)
    phase: Phase = (
        "Running"
        if reason in ("join", "drain")
        else "Recovering"
        if reason == "loss"
        else "Pending"
    )
    left_out = nodes_left_out(view)
    again = sooner(debounce_left_s(view), *(out.until_s - view.now for out in left_out))
    if reason == "join" and live is not None:  # else the plan of the move brings the steps along
        pause_s = _growth_pause_s(view, live)
        if pause_s is not None and pause_s <= 0:
            return _let_steps_grow(job, observed, live)
        again = sooner(again, pause_s)
    if reason == "drain" and live is not None:
        joined = joined_lately(view, live, composition)
        if joined is not None:
            why = cause_of_move(view, live, leaving).sentence
            sentence = (
                f"the job moves once node {joined[0]}, which joined lately, may be used: "
                f"minHolders is {job.spec.elastic.min_holders}, and {why}"
            )
            return Decision(
                actions=(), phase=phase, message=sentence, look_again_s=sooner(again, joined[1])
            )
    if allowed_gpus(job, observed, composition) < job.spec.elastic.min_gpus:
        sentence = too_few_gpus(job, observed, composition, left_out)
        causes = causes_of_too_few(observed, left_out)
        key = f"waiting-{job.metadata.generation}-{observed.next_epoch}-{causes}"
        event = RecordEvent(key, "InsufficientGPUs", sentence)
        told = (event,) if phase == "Pending" else ()
        return Decision(
            actions=told,
            phase=phase,
            message=sentence,
            look_again_s=again,
            reason="InsufficientGPUs",
        )
    if observed.template_problem and reason in ("start", "join"):
        sentence = f"the cluster takes no pod of the job: {observed.template_problem}"
        event = RecordEvent(f"no-pod-{sentence}", "PodsCannotStart", sentence)
        again = sooner(again, TEMPLATE_S)
        keeps = live is not None
        return Decision(
            actions=(event,),
            phase=phase,
            message=sentence,
            look_again_s=again,
            keeps_plan=keeps,
            reason="PodsCannotStart",
        )
    if job.spec.elastic.mode == "Manual" and reason in ("start", "join"):
        followed = adopt_referenced(view, composition, reason, live)
        if followed is not None:
            return replace(followed, look_again_s=sooner(followed.look_again_s, again))
    most = gpu_limits(job, observed, composition).total
    knows = live is not None and not live.is_emergency and not _is_repriced(observed, live)
    asked = (live.composition, live.max_gpus) if live is not None and knows else None
    if reason == "join" and asked == (composition, most):
        room = observed.headroom
        said = left_by_quotas(room) if 0 in (room.gpus, room.pods) else []
        said += filter(None, [surplus_words(job, observed)])
        spent = f" ({'; '.join(said)})" if said else ""
        sentence = f"the plan is kept: it was found for these very nodes{spent}"
        return Decision(
            actions=(),
            phase=phase,
            message=sentence,
            look_again_s=again,
            keeps_plan=True,
            reason="PlanKept",
        )
    return _ask(view, composition, reason, leaving, again, phase)


def _ask(
    view: View,
    composition: Composition,
    reason: Reason,
    leaving: Mapping[str, str],
    again: float | None,
    phase: Phase,
) -> Decision:
    """Ask for a plan and judge it, or make an emergency move where there is no time for that."""
    observed = view.observed
    live = view.situation.live
    if live is None and observed.is_weighing:
        return Decision(
            actions=(),
            phase="Planning",
            message="the planner weighs the GPU types for the job",
            look_again_s=again,
        )
    request = plan_request(view.job, observed, composition, live.plan if live else None)
    reply = observed.replies.get(request.key)
    if reason == "drain" and live is not None:
        emergency_s = emergency_left_s(view, live, reply is not None)
        if emergency_s <= 0 and (plan := emergency_plan(view, live, composition)):
            why = cause_of_move(view, live, leaving)
            return _emergency_move(view.job, observed, live, plan, composition, why)
        again = sooner(again, emergency_s if 0 < emergency_s < math.inf else None)
    if reply is None:
        actions = () if request.key in observed.planning else (request,)
        sentence = f"the planner searches a plan for {request.gpus_on_nodes}"
        return Decision(
            actions=actions,
            phase="Planning" if phase != "Running" else phase,
            message=sentence,
            look_again_s=again,
        )
    if reply.plan is None:
        event = RecordEvent(f"no-plan-{request.key.composition}", "InsufficientGPUs", reply.problem)
        words = f"there is no plan: {reply.problem}"
        return Decision(
            actions=(event,),
            phase=phase,
            message=words,
            look_again_s=again,
            reason="InsufficientGPUs",
        )
    forced = None
    if live is not None and reason in ("drain", "loss"):
        forced = cause_of_move(view, live, leaving)
    return _judge(view, composition, reason, reply, again, phase, forced)


def _occasion(view: View, leaving: Mapping[str, str]) -> tuple[Reason, Composition]:
    """Why a plan is asked for, and for which nodes."""
    situation = view.situation
    live = situation.live
    started = started_nodes(view, frozenset(leaving))
    if live is None:
        return "start", untried(view, started, None)
    most = most_gpus(view.job, view.observed)
    fits = most is None or live.plan.gpus <= most
    if not situation.lost and fits and not loses_gpus(live.plan, started):
        smaller = _without_large_pod(view, live, leaving)
        if smaller is not None:
            return "drain", untried(view, smaller, live)
        return "join", untried(view, started, live, live.plan.nodes)
    left = usable_nodes(view, frozenset(leaving))
    if not situation.lost:
        composition = nodes_after(view, live, left)
        return "drain", untried(view, composition, live)
    composition = ready_nodes(view.job, view.observed, live.plan, left)
    composition = without_partitioned(view, composition)
    return "loss", untried(view, composition, live)


def _without_large_pod(
    view: View, live: EpochRecord, leaving: Mapping[str, str]
) -> Composition | None:
    """The nodes without a pod that holds GPUs above `maxGPUs`; None where the job needs it."""
    job, observed = view.job, view.observed
    large = large_pod(view)
    if large is None:
        return None
    nodes = usable_nodes(view, frozenset(leaving))
    left = without_pod(observed, large, nodes)
    reply = observed.replies.get(plan_request(job, observed, left, live.plan).key)
    has_none = reply is not None and reply.plan is None
    enough = allowed_gpus(job, observed, left) >= job.spec.elastic.min_gpus
    return left if enough and not has_none else None


def _judge(
    view: View,
    composition: Composition,
    reason: Reason,
    reply: PlanReply,
    again: float | None,
    phase: Phase,
    forced: MoveCause | None,
) -> Decision:
    job, observed, now, settings = view.job, view.observed, view.now, view.settings
    live = view.situation.live
    verdict = judge(
        reply,
        live.plan if live else None,
        forced,
        job.spec.elastic,
        expected_change_s(observed.epochs, now, settings),
        expected_stall_s(observed.stalls_s, settings),
    )
    assert reply.plan is not None
    if not verdict.adopts:
        if verdict.pays_from_change_s is not None:
            pays_from_s = verdict.pays_from_change_s
            again = sooner(again, quiet_left_s(observed.epochs, now, pays_from_s, settings))
        events = _kept_event(live, reply, composition, verdict.sentence)
        return Decision(
            actions=events,
            phase=phase,
            message=verdict.sentence,
            look_again_s=again,
            keeps_plan=True,
            reason="PlanKept",
        )
    failed = failed_attempt(observed.epochs, reply.plan, now) if reason == "join" else None
    if failed is not None:
        return keep_after_failure(failed, now, again)
    if job.spec.elastic.mode == "Recommend" and reason == "join":
        return recommend(reply, composition, verdict, again)
    wait, pause = _hold(view, reason, verdict.skips_cooldown)
    if reason == "start":
        turn = turn_left_s(view, reply.plan)
        wait, pause = (turn, "job's start backoff") if turn > wait else (wait, pause)
    if wait > 0:
        sentence = f"{verdict.sentence}; the change begins after the {pause}"
        return Decision(actions=(), phase=phase, message=sentence, look_again_s=sooner(again, wait))
    adopt = AdoptPlan(
        epoch=observed.next_epoch,
        plan=reply.plan,
        reason=reason,
        composition=composition,
        step_s=reply.iteration_s,
        cause=causes_of(view.situation),
        steps=job.spec.steps,
        max_gpus=gpu_limits(job, observed, composition).total,
        moved_by=verdict.cause.kind if verdict.cause else None,
    )
    goes_on = live is None and view.situation.left is not None
    sentence = "the job goes on from a checkpoint" if goes_on else verdict.sentence
    return _adopted(adopt, sentence, again)


def _adopted(adopt: AdoptPlan, sentence: str, again: float | None = None) -> Decision:
    """The decision that adopts a plan, with its Event."""
    words = f"epoch {adopt.epoch} ({adopt.reason}): {sentence}"
    event = RecordEvent(f"adopted-{adopt.epoch}", "PlanSelected", words)
    return Decision(actions=(adopt, event), phase="Preparing", message=sentence, look_again_s=again)


def _is_repriced(observed: Observed, live: EpochRecord) -> bool:
    """Whether the live plan was found with times that have been corrected since."""
    return observed.repriced_s is not None and observed.repriced_s > live.adopted_s


def _growth_pause_s(view: View, live: EpochRecord) -> float | None:
    """Seconds until the steps may grow, at most 0 for now; None where they need not."""
    observed, now = view.observed, view.now
    if live.steps is None or live.steps >= view.job.spec.steps:
        return None
    ended_s = observed.epochs[-1].closed_s
    pause_s = (
        (now if ended_s is None else ended_s) + backoff_s(observed.epochs, view.settings) - now
    )
    failed = failed_attempt(observed.epochs, live.plan, now)
    return pause_s if failed is None else max(pause_s, retry_left_s(failed, now))


def _let_steps_grow(job: HeddleJob, observed: Observed, live: EpochRecord) -> Decision:
    """Adopt the live plan once more, with the steps that the job wants now."""
    sentence = f"steps grow from {live.steps} to {job.spec.steps}; the plan is the same"
    adopt = AdoptPlan(
        epoch=observed.next_epoch,
        plan=live.plan,
        reason="join",
        composition=live.composition,
        step_s=live.step_s,
        steps=job.spec.steps,
        is_emergency=live.is_emergency,
        max_gpus=live.max_gpus,
    )
    return _adopted(adopt, sentence)


def _emergency_move(
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
        steps=job.spec.steps,
        is_emergency=True,
        moved_by=why.kind,
    )
    return _adopted(adopt, sentence)


def _kept_event(
    live: EpochRecord | None, reply: PlanReply, composition: Composition, sentence: str
) -> tuple[Action, ...]:
    """One event for each composition in which the live plan was kept all the same."""
    if live is None or (reply.plan == live.plan and composition == live.composition):
        return ()
    return (RecordEvent(f"kept-{live.epoch}-{composition.digest}", "PlanKept", sentence),)


def _hold(view: View, reason: Reason, skips_cooldown: bool) -> tuple[float, str]:
    """Seconds that adoption must still wait, and for what.

    After aborts, and losses at one step, it waits for the backoff; where only gain asks for the
    change, for the cooldown.  An epoch that broke before it was on
    record as live has no end: the backoff counts from when the loss was seen.
    """
    observed, now = view.observed, view.now
    live = view.situation.live
    last = observed.epochs[-1].closed_s if observed.epochs else None
    last = observed.recovering_since_s if last is None else last
    resume = (
        resume_of([holder.rank for holder in view.situation.holders]) if reason == "loss" else None
    )
    step = resume.step if resume else None
    wait = (now if last is None else last) + backoff_s(observed.epochs, view.settings, step) - now
    waits = reason == "join" and not skips_cooldown
    if waits and live is not None and live.epoch > 1 and live.closed_s is not None:
        cooldown = live.closed_s + view.job.spec.elastic.cooldown_seconds - now
        if cooldown > wait:
            return cooldown, "cooldown"
    return wait, "pause that follows a failed change"
