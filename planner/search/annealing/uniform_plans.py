"""Plans to start from: stages of one kind, and pipelines of several node classes side by side.

Invariant: every template of one option is priced as often as it fits, a power of two times, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from planner.estimator.elite_set import EliteSet, remember
from planner.estimator.jit import jit
from planner.estimator.objective import SearchLimits, judged, price_plan, refill
from planner.estimator.tables import Floats, Tables
from planner.estimator.unplaced_plan import UnplacedPlan, most_replicas
from planner.estimator.whole_plan import iteration_seconds
from planner.estimator.workspace import Workspace


def _always(_priced: int, _more: int) -> bool:
    return True


def start(
    t: Tables,
    limits: SearchLimits,
    now: UnplacedPlan,
    work: Workspace,
    elites: EliteSet,
    goes_on: Callable[[int, int], bool] = _always,
) -> int:
    """Price plans to start from; returns how many.

    Args:
        t: what it prices with.
        limits: objective and limits.
        now: scratch space.
        work: likewise.
        elites: takes the best plans.
        goes_on: whether so many plans more may be priced, after so many; asked before each part.
    """
    fastest = np.full((len(t.node_gpus), 4), math.inf)  # of a class: seconds, option, depth, n
    priced = 0
    for option in range(len(t.option_tp)):
        if not goes_on(priced, 3 * limits.deepest):
            return priced
        priced += price_uniform(t, limits, option, now, work, elites, fastest)
    if goes_on(priced, len(fastest)):
        priced += join_fastest(t, limits, now, work, elites, fastest)
    return priced


@jit
def price_uniform(
    t: Tables,
    limits: SearchLimits,
    option: int,
    now: UnplacedPlan,
    work: Workspace,
    elites: EliteSet,
    fastest: Floats,
) -> int:
    """Price every template of one option alone; returns how many plans.

    Args:
        t: what it prices with.
        limits: objective and limits.
        option: of all stages.
        now: scratch space.
        work: likewise.
        elites: takes the best plans.
        fastest: [T, 4] takes the fastest template that fills the option's node class: its seconds,
            option, depth and replicas.
    """
    best = fastest[t.option_type[option]]
    priced = 0
    now.number[0] = 1
    for depth in range(1, limits.deepest + 1):
        now.depth[0] = depth
        for s in range(depth):
            now.options[0, s] = option
        most = most_replicas(t, now, 0)
        if most < 1:
            break
        power = 1
        while power * 2 <= most:
            power *= 2
        last = 0
        for replicas in (most, power, 1):
            if replicas == last:
                continue
            last = replicas
            now.replicas[0] = replicas
            priced += 1
            if refill(t, now, 0, work):
                seconds = iteration_seconds(t, now, work.price, math.inf)
                value = judged(t, limits, now, seconds)
                if value < math.inf:
                    remember(elites, now, value)
                if replicas == most and seconds < best[0]:
                    best[0], best[1], best[2], best[3] = seconds, option, depth, most
    return priced


def join_fastest(
    t: Tables,
    limits: SearchLimits,
    now: UnplacedPlan,
    work: Workspace,
    elites: EliteSet,
    fastest: Floats,
) -> int:
    """Price the fastest templates of the classes side by side; returns how many plans.

    They join one by one, the fastest first.  Arguments are those of `price_uniform`; the seconds of
    `fastest` are used up.
    """
    now.number[0] = 0
    for k in range(min(len(fastest), limits.max_templates)):
        kind = 0
        for other in range(len(fastest)):
            if fastest[other, 0] < fastest[kind, 0]:
                kind = other
        if fastest[kind, 0] == math.inf:
            break
        fastest[kind, 0] = math.inf
        now.number[0] = k + 1
        now.depth[k] = int(fastest[kind, 2])
        now.replicas[k] = int(fastest[kind, 3])
        for s in range(now.depth[k]):
            now.options[k, s] = int(fastest[kind, 1])
        price_plan(t, limits, now, work, elites, False)
    return int(now.number[0])
