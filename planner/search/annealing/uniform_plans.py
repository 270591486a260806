"""Plans to start from: stages of one kind, and pipelines of several node classes side by side.

Invariant: every template of one option is priced as often as it fits and may be paid, a power of
two times, and once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

import numpy as np

from planner.estimator.objective import SearchLimits, price_plan
from planner.estimator.tables import Floats, Tables
from planner.estimator.top_k import TopK
from planner.estimator.unplaced_plan import UnplacedPlan, most_replicas
from planner.estimator.whole_plan import iteration_seconds, price_per_hour
from planner.estimator.workspace import Workspace


def _always(_priced: int, _more: int) -> bool:
    return True


def unknown_fastest(t: Tables) -> Floats:
    """[T, 4] of a class: seconds, option, depth and replicas of its fastest template."""
    return np.full((len(t.node_gpus), 4), math.inf)


def start(
    t: Tables,
    limits: SearchLimits,
    work: Workspace,
    top_k: TopK,
    goes_on: Callable[[int, int], bool] = _always,
    fastest: Floats | None = None,
) -> int:
    """Evaluate plans to start from, returns how many.

    Before each part, `goes_on` says after so many whether so many more may be priced.  `fastest`
    [T, 4], if given, takes the fastest template of each class, as `price_uniform` fills it.
    """
    fastest = unknown_fastest(t) if fastest is None else fastest
    priced = 0
    for option in range(len(t.option_tp)):
        if not goes_on(priced, 3 * limits.deepest):
            return priced
        priced += price_uniform(t, limits, option, work, top_k, fastest)
    if goes_on(priced, len(fastest)):
        priced += join_fastest(t, limits, work, top_k, fastest.copy())
    return priced


def price_uniform(
    t: Tables,
    limits: SearchLimits,
    option: int,
    work: Workspace,
    top_k: TopK,
    fastest: Floats,
) -> int:
    """Evaluate every template of one option alone; returns how many plans.

    `fastest` [T, 4] takes the fastest template that fills the option's node class: its seconds,
    option, depth and replicas.
    """
    now, best = work.now, fastest[t.option_type[option]]
    priced = 0
    now.number[0] = 1
    now.options[0] = option
    for depth in range(1, limits.deepest + 1):
        now.depth[0] = depth
        most = affordable(t, limits, now, most_replicas(t, now, 0))
        if most < 1:
            break
        power = 1 << int(most).bit_length() - 1
        for replicas in sorted({most, power, 1}, reverse=True):
            now.replicas[0] = replicas
            price_plan(t, limits, now, work, top_k, False)
            priced += 1
            if replicas == most and now.filling_count[0, 0]:
                seconds = iteration_seconds(t, now, work, math.inf)
                if seconds < best[0]:
                    best[:] = seconds, option, depth, most
    return priced


def affordable(t: Tables, limits: SearchLimits, plan: UnplacedPlan, most: int) -> int:
    """So many replicas of the only template as the limit of price allows, at most that many.

    Where not even one is, it is 1: what is cheapest then says how much is too much.
    """
    if limits.most_price == math.inf or most <= 1:
        return most

    def costs(replicas: int) -> float:
        plan.replicas[0] = replicas
        return price_per_hour(t, plan)

    return max(1, bisect_right(range(1, most + 1), limits.most_price, key=costs))


def join_fastest(
    t: Tables,
    limits: SearchLimits,
    work: Workspace,
    top_k: TopK,
    fastest: Floats,
) -> int:
    """Evaluate the fastest templates of the classes side by side; returns how many plans.

    They join one by one, the fastest first, as far as limits on GPUs leave replicas; the seconds
    of `fastest` are used up.
    """
    now = work.now
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
        now.replicas[k] = min(now.replicas[k], most_replicas(t, now, k))
        if now.replicas[k] < 1:
            now.number[0] = k
            break
        price_plan(t, limits, now, work, top_k, False)
    return int(now.number[0])
