"""Teach by search: anneal over the plans that the policy's own environment can build.

A plan is an ordered row of templates; replicas follow from the order, as in a episode, so that
every plan of a teacher can be repeated decision by decision.
Invariant: the same tables, seed and steps give the same plan.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import NamedTuple

import numpy as np

from planner.estimator.jit import jit
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES, Ints, Tables
from planner.estimator.unplaced_plan import UnplacedPlan, copy_plan, new_plan
from planner.estimator.workspace import Workspace, new_workspace
from planner.policy.closing import fill_last
from planner.policy.partial_plans import Templates
from planner.search.annealing.moves import change_stages, random_stages
from planner.search.annealing.random import below, uniform

HOT, WARM, COLD = 0.05, 0.01, 0.0005  # temperatures, as shares of the seconds
STARTS = 200  # random templates, the best of which is walked from


class Demonstration(NamedTuple):
    """The best plan of a walk."""

    seconds: float  # of an iteration; infinite if no plan was found
    templates: Templates  # of the plan


@jit
def rebuild(t: Tables, plan: UnplacedPlan, first: int, work: Workspace) -> float:
    """Place and fill all templates from `first` on again, in order."""
    seconds = math.inf
    count = plan.number[0]
    for k in range(first, count):
        plan.number[0] = k + 1
        seconds = fill_last(t, plan, work)
        if seconds == math.inf:
            break
    plan.number[0] = count
    return seconds


@jit
def copy_stages(plan: UnplacedPlan, k: int, j: int) -> None:
    """Give slot `j` the stages of slot `k`."""
    plan.depth[j] = plan.depth[k]
    for s in range(MAX_DEPTH):
        plan.options[j, s] = plan.options[k, s]


@jit
def step(t: Tables, limits: SearchLimits, plan: UnplacedPlan, state: Ints) -> int:
    """Change the row of templates a little; returns the first that changed."""
    count = int(plan.number[0])
    k = int(below(state, count))
    kind = below(state, 12)
    if kind < 7:
        change_stages(t, limits, plan, k, state)
        return k
    if kind < 9 and count < limits.max_templates:
        plan.number[0] = count + 1
        if below(state, 2):
            random_stages(t, limits, plan, count, state)
        else:
            copy_stages(plan, k, count)
            change_stages(t, limits, plan, count, state)
        return count
    if kind == 9 and count > 1:
        for j in range(k, count - 1):
            copy_stages(plan, j + 1, j)
        plan.number[0] = count - 1
        return min(k, count - 2)
    if kind == 10 and count > 1:
        other = int(below(state, count))
        for s in range(MAX_DEPTH):
            kept = plan.options[k, s]
            plan.options[k, s] = plan.options[other, s]
            plan.options[other, s] = kept
        kept = plan.depth[k]
        plan.depth[k] = plan.depth[other]
        plan.depth[other] = kept
        return min(k, other)
    random_stages(t, limits, plan, k, state)
    return k


def teach(
    t: Tables, limits: SearchLimits, steps: int, seed: int, start: Templates = ()
) -> Demonstration:
    """The best plan of one annealing near that start; without one it begins at random, hotter."""
    limits = limits._replace(max_templates=min(limits.max_templates, MAX_TEMPLATES))
    state, work = np.array([1 + seed % 2147483646], np.int64), new_workspace(t)
    now, trial = new_plan(), new_plan()
    value = _begin(t, limits, start, state, work, now, trial)
    if value == math.inf:
        return Demonstration(value, ())
    best = Demonstration(value, _templates_of(now))
    temperature = WARM if start else HOT
    cooling = (COLD / temperature) ** (1.0 / steps)
    for _ in range(steps):
        temperature *= cooling
        copy_plan(now, trial)
        first = step(t, limits, trial, state)
        seconds = float(rebuild(t, trial, first, work))
        accepted = seconds < value
        if not accepted and seconds < math.inf:
            accepted = uniform(state) < math.exp((value - seconds) / (temperature * value))
        if accepted:
            value = seconds
            now, trial = trial, now
            if value < best.seconds:
                best = Demonstration(value, _templates_of(now))
    return best


def _begin(
    t: Tables,
    limits: SearchLimits,
    start: Templates,
    state: Ints,
    work: Workspace,
    now: UnplacedPlan,
    trial: UnplacedPlan,
) -> float:
    """Leave the start, or the best of some random templates, in `now`; seconds, or infinity."""
    now.number[0] = len(start)
    for k, options in enumerate(start):
        now.depth[k] = len(options)
        now.options[k, : len(options)] = options
    if start:
        return float(rebuild(t, now, 0, work))
    best_s = math.inf
    trial.number[0] = 1
    for _ in range(STARTS):
        random_stages(t, limits, trial, 0, state)
        seconds = float(rebuild(t, trial, 0, work))
        if seconds < best_s:
            best_s = seconds
            copy_plan(trial, now)
    return best_s


def _templates_of(plan: UnplacedPlan) -> Templates:
    rows = zip(plan.options, plan.depth, strict=True)
    return tuple(tuple(map(int, row[:depth])) for row, depth in islice(rows, plan.number[0]))
