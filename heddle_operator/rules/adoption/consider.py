"""When to ask for a plan and when to adopt one: start, join, drain, loss.

Invariant: what can be said without the planner is said first, in one order.
"""

from __future__ import annotations

from dataclasses import replace

from heddle_operator.rules.adoption.adopted import more_steps
from heddle_operator.rules.adoption.modes import adopt_referenced
from heddle_operator.rules.adoption.occasion import Occasion, occasion_of
from heddle_operator.rules.adoption.searched import ask
from heddle_operator.rules.candidates import joining_nodes
from heddle_operator.rules.emergency import joined_lately
from heddle_operator.rules.failures import failed_gpu_words
from heddle_operator.rules.gpu_limits import (
    allowed_gpus,
    causes_of_too_few,
    gpu_limits,
    left_by_quotas,
    too_few_gpus,
)
from heddle_operator.rules.moves.causes import cause_of_move
from heddle_operator.rules.moves.surplus import surplus_words
from heddle_operator.state.actions import RecordEvent
from heddle_operator.state.decision import Decision, sooner
from heddle_operator.state.reasons import LackReason
from heddle_operator.state.situation import View

TEMPLATE_S = 5.0  # a template that the cluster refuses is looked at again after so long


def consider_plan(view: View) -> Decision:
    """Keep the live plan, or ask for and adopt a better one; without a live plan, start."""
    occasion = occasion_of(view)
    for rule in (
        _grow_steps,
        _await_joined_node,
        _need_more_gpus,
        _need_another_template,
        _follow_plan_ref,
        _keep_for_same_nodes,
    ):
        decision = rule(occasion)
        if decision is not None:
            return decision
    return ask(occasion)


def _grow_steps(occasion: Occasion) -> Decision | None:
    """A job whose steps grew goes on by the plan that it has."""
    live, growth_s = occasion.live, occasion.growth_s
    if live is None or growth_s is None or growth_s > 0:
        return None
    return more_steps(occasion.view.job, occasion.view.observed, live)


def _await_joined_node(occasion: Occasion) -> Decision | None:
    """A node that joined lately may be the one that `minHolders` asks for."""
    view, live = occasion.view, occasion.live
    if occasion.reason != "drain" or live is None:
        return None
    joined = joined_lately(view, live, occasion.composition)
    if joined is None:
        return None
    node, left_s = joined
    why = cause_of_move(view, live, occasion.leaving).sentence
    sentence = (
        f"the job moves once node {node}, which joined lately, may be used: "
        f"minHolders is {view.job.spec.elastic.min_holders}, and {why}"
    )
    again = sooner(occasion.again, left_s)
    return Decision(actions=(), phase=occasion.phase, message=sentence, look_again_s=again)


def _need_more_gpus(occasion: Occasion) -> Decision | None:
    """Below `minGPUs` no plan is asked for."""
    view, left_out = occasion.view, occasion.left_out
    job, observed = view.job, view.observed
    if allowed_gpus(job, observed, occasion.composition) >= job.spec.elastic.min_gpus:
        return None
    joining = [node for node, _ in joining_nodes(view)]
    failed = failed_gpu_words(view)
    sentence = too_few_gpus(job, observed, occasion.composition, left_out, joining, failed)
    causes = causes_of_too_few(observed, left_out)
    key = f"waiting-{job.metadata.generation}-{observed.next_epoch}-{causes}"
    why: LackReason = "GPUFailed" if failed else "InsufficientGPUs"
    event = RecordEvent(key, why, sentence)
    return Decision(
        actions=(event,) if occasion.phase == "Pending" else (),
        phase=occasion.phase,
        message=sentence,
        look_again_s=occasion.again,
        reason=why,
    )


def _need_another_template(occasion: Occasion) -> Decision | None:
    """No job starts or grows by pods that the cluster refuses."""
    problem = occasion.view.observed.template_problem
    if not problem or occasion.reason not in ("start", "join"):
        return None
    sentence = f"the cluster takes no pod of the job: {problem}"
    event = RecordEvent(f"no-pod-{sentence}", "PodsCannotStart", sentence)
    return Decision(
        actions=(event,),
        phase=occasion.phase,
        message=sentence,
        look_again_s=sooner(occasion.again, TEMPLATE_S),
        keeps_plan=occasion.live is not None,
        reason="PodsCannotStart",
    )


def _follow_plan_ref(occasion: Occasion) -> Decision | None:
    """In mode Manual `planRef` names the plan."""
    view, reason = occasion.view, occasion.reason
    if view.job.spec.elastic.mode != "Manual" or reason not in ("start", "join"):
        return None
    followed = adopt_referenced(view, occasion.composition, reason, occasion.live)
    if followed is None:
        return None
    return replace(followed, look_again_s=sooner(followed.look_again_s, occasion.again))


def _keep_for_same_nodes(occasion: Occasion) -> Decision | None:
    """A plan that was found for these very nodes, at today's times, is not searched again."""
    view, live = occasion.view, occasion.live
    job, observed = view.job, view.observed
    if occasion.reason != "join" or live is None or live.is_emergency:
        return None
    is_repriced = observed.repriced_s is not None and observed.repriced_s > live.adopted_s
    most = gpu_limits(job, observed, occasion.composition).total
    asked = (live.composition, live.max_gpus)
    if is_repriced or asked != (occasion.composition, most):
        return None
    room = observed.headroom
    said = left_by_quotas(room) if 0 in (room.gpus, room.pods) else []
    said += filter(None, [surplus_words(job, observed)])
    spent = f" ({'; '.join(said)})" if said else ""
    return Decision(
        actions=(),
        phase=occasion.phase,
        message=f"the plan is kept: it was found for these very nodes{spent}",
        look_again_s=occasion.again,
        keeps_plan=True,
        reason="PlanKept",
    )
