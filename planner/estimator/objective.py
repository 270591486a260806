"""Objective of a search: whole plans before their placement, filled and priced.

The objective and its limits come with a request.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from planner.estimator.fill.filling import fill_template
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Tables
from planner.estimator.top_k import TopK, remember, worst_value
from planner.estimator.unplaced_plan import UnplacedPlan, most_replicas, pipelines_of
from planner.estimator.whole_plan import iteration_seconds, price_per_hour
from planner.estimator.workspace import Workspace

PER_SIZE = 4  # splits of one micro-batch size, while searching
REFILL = 1.5  # a change of the number of pipelines by this factor fills a slot again


class SearchLimits(NamedTuple):
    """Objective and limits of a search.

    Attributes:
        deepest: most stages.
        max_templates: most templates.
        counts_money: 1: money per sample; 0: seconds.
        most_s: of an iteration.
        most_price: money per hour.
        least_price: what money per hour counts at least while it is minimised.
    """

    deepest: int
    max_templates: int
    counts_money: int
    most_s: float
    most_price: float
    least_price: float = 0.0


@jit
def weight_of(t: Tables, limits: SearchLimits, plan: UnplacedPlan) -> float:
    """Weight of a second of a plan: 1, or its price; infinite if it breaks a limit."""
    if pipelines_of(plan) < t.min_replicas:
        return math.inf
    if limits.counts_money or limits.most_price < math.inf:
        price = price_per_hour(t, plan)
        if price > limits.most_price:
            return math.inf
        if limits.counts_money:
            return max(price, limits.least_price)
    return 1.0


@jit
def judged(t: Tables, limits: SearchLimits, plan: UnplacedPlan, seconds: float) -> float:
    """Objective of a plan that takes so long; infinite if it breaks a limit."""
    if seconds > limits.most_s:
        return math.inf
    return seconds * weight_of(t, limits, plan)


@inlined
def objective(
    t: Tables, limits: SearchLimits, plan: UnplacedPlan, work: Workspace, limit: float
) -> float:
    """Objective of a plan; infinite if it cannot run, or breaks a limit.

    What is above `limit` counts as infinite, and is known sooner.
    """
    weight = weight_of(t, limits, plan)
    if weight == math.inf:
        return weight
    return weight * iteration_seconds(t, plan, work, min(limits.most_s, limit / weight))


@jit
def is_outdated(plan: UnplacedPlan, k: int, pipelines: int) -> bool:
    """Whether a slot was filled in a plan of far more or fewer pipelines, or with other stages."""
    before = plan.pipelines[k]
    return before * REFILL < pipelines or pipelines * REFILL < before


@inlined
def refill(t: Tables, plan: UnplacedPlan, k: int, work: Workspace) -> bool:
    """Fill a slot again; whether anything fits."""
    plan.pipelines[k] = pipelines_of(plan)
    # a constant would have every caller compile a fill of its own
    fill_template(t, plan, k, plan.pipelines[k], int(PER_SIZE), work)
    return plan.filling_count[k, 0] > 0


@jit
def price_plan(
    t: Tables,
    limits: SearchLimits,
    plan: UnplacedPlan,
    work: Workspace,
    top_k: TopK,
    is_filled: bool,
) -> None:
    """Evaluate a plan, whose slots may be filled already; a good one is kept."""
    for k in range(0 if is_filled else plan.number[0]):
        if most_replicas(t, plan, k) < plan.replicas[k] or not refill(t, plan, k, work):
            return
    value = objective(t, limits, plan, work, worst_value(top_k))
    if value < math.inf:
        remember(top_k, plan, value)
