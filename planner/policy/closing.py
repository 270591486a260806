"""Close the open templates of partial plans: replicas, fill, and what the plan then costs.

A template takes as many replicas as can be packed, or the power of two below where that is faster:
then n b M meets B without a remainder, and GPUs stay for later templates.
Invariants: the templates before the last one keep their stages and their replicas; a row that is
not ended holds a plan that trains exactly B samples.
Source: Heddle, section 5.3 (DP degree, micro-batch in the context of the plan so far) and 5.5 (what
a template that does not fit means).
"""

from __future__ import annotations

import math

from planner.estimator.jit import inlined, jit
from planner.estimator.objective import SearchLimits, is_outdated, judged, refill
from planner.estimator.tables import Ints, Tables
from planner.estimator.top_k import TopK, remember
from planner.estimator.unplaced_plan import UnplacedPlan, most_replicas, pipelines_of, plan_at
from planner.estimator.whole_plan import iteration_seconds
from planner.estimator.workspace import Workspace
from planner.policy.partial_plans import PartialPlans


@inlined
def price_last(t: Tables, plan: UnplacedPlan, replicas: int, work: Workspace) -> float:
    """Seconds of an iteration if the last template has so many replicas; infinite if it cannot."""
    last = plan.number[0] - 1
    plan.replicas[last] = replicas
    plan.pipelines[last] = 0  # never filled
    pipelines = pipelines_of(plan)
    for j in range(last + 1):
        if is_outdated(plan, j, pipelines):
            refill(t, plan, j, work)
        if plan.filling_count[j, 0] == 0:
            return math.inf
    return iteration_seconds(t, plan, work, math.inf)


@inlined
def fill_last(t: Tables, plan: UnplacedPlan, work: Workspace) -> float:
    """Choose the replicas of the last template and fill it; infinite if it does not fit.

    The plan is left priced with that choice.
    """
    most = most_replicas(t, plan, plan.number[0] - 1)
    if most < 1:
        return math.inf
    power = 1
    while power * 2 <= most:
        power *= 2
    most_s = math.inf
    for replicas in (most, power, most):
        seconds = price_last(t, plan, replicas, work)
        if replicas == power and (most_s == math.inf or seconds < most_s):
            return seconds
        if most_s == math.inf:
            most_s = seconds
    return most_s


@inlined
def keep_or_end(
    t: Tables,
    limits: SearchLimits,
    d: PartialPlans,
    r: int,
    plan: UnplacedPlan,
    seconds: float,
    t_max: int,
    top_k: TopK,
) -> None:
    """Close the last template of a row at its price; one that does not fit ends the row."""
    k = plan.number[0] - 1
    if seconds == math.inf:
        plan.number[0] = k
        d.ended[r] = 1
        return
    d.seconds[r] = seconds
    d.used[r] = 0
    for s in range(plan.depth[k]):
        option = plan.options[k, s]
        d.taken[r, option] += plan.replicas[k] * t.option_tp[option]
    value = judged(t, limits, plan, seconds)
    if value < math.inf:
        remember(top_k, plan, value)
    if k + 1 >= t_max:
        d.ended[r] = 1


@jit
def close_templates(
    t: Tables,
    limits: SearchLimits,
    d: PartialPlans,
    rows: Ints,
    t_max: int,
    work: Workspace,
    top_k: TopK,
) -> int:
    """Fill and price the open template of each row; returns how many plans there were.

    A template that does not fit ends its row at the plan so far.  Every plan on the way is offered
    to `top_k`.
    """
    for i in range(len(rows)):
        plan = plan_at(d.plans, rows[i])
        plan.number[0] += 1
        keep_or_end(t, limits, d, rows[i], plan, fill_last(t, plan, work), t_max, top_k)
    return len(rows)
