"""Add a template to a plan: its replicas, its fill, and what the plan then costs.

The fill takes as many replicas as can be packed, or the power of two below where that is faster:
then n b M meets B without a remainder, and GPUs stay for later templates.
Invariant: the templates before the last one keep their stages and their replicas.
Source: Heddle, section 5.3 (DP degree, micro-batch in the context of the plan so far).
"""

from __future__ import annotations

import math

from planner.estimator.bag import Bag, most_replicas, pipelines_of
from planner.estimator.bench import Bench
from planner.estimator.jit import inlined
from planner.estimator.objective import is_outdated, refill
from planner.estimator.tables import Tables
from planner.estimator.whole_plan import iteration_seconds


@inlined
def price_last(t: Tables, bag: Bag, replicas: int, bench: Bench) -> float:
    """Seconds of an iteration if the last template has so many replicas; infinite if it cannot."""
    last = bag.number[0] - 1
    bag.replicas[last] = replicas
    bag.pipelines[last] = 0  # never filled
    pipelines = pipelines_of(bag)
    for j in range(last + 1):
        if is_outdated(bag, j, pipelines):
            refill(t, bag, j, bench)
        if bag.filling_count[j, 0] == 0:
            return math.inf
    return iteration_seconds(t, bag, bench.price, math.inf)


@inlined
def fill_last(t: Tables, bag: Bag, bench: Bench) -> float:
    """Choose the replicas of the last template and fill it; infinite if it does not fit.

    The plan is left priced with that choice.
    """
    most = most_replicas(t, bag, bag.number[0] - 1)
    if most < 1:
        return math.inf
    power = 1
    while power * 2 <= most:
        power *= 2
    most_s = math.inf
    for replicas in (most, power, most):
        seconds = price_last(t, bag, replicas, bench)
        if replicas == power and (most_s == math.inf or seconds < most_s):
            return seconds
        if most_s == math.inf:
            most_s = seconds
    return most_s
