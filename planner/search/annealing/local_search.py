"""Annealing over whole plans: one template at a time changes, all are priced together.

Replica counts and the order of stages are free.  With one template allowed, this finds the plans
whose replicas share the batch without remainder, which rule where replicas are many.
Invariant: the same tables, start, seed and steps give the same top K.
"""

from __future__ import annotations

import math

from planner.estimator.jit import jit
from planner.estimator.objective import SearchLimits, is_outdated, objective, refill
from planner.estimator.tables import Tables
from planner.estimator.top_k import TopK, remember
from planner.estimator.unplaced_plan import copy_plan, copy_slot, pipelines_of
from planner.estimator.workspace import Workspace
from planner.search.annealing.moves import propose
from planner.search.annealing.random import uniform


@jit
def anneal(
    t: Tables,
    limits: SearchLimits,
    work: Workspace,
    top_k: TopK,
    steps: int,
    hot: float,
    cold: float,
) -> float:
    """Walk from the plan `now` (filled and priced here) for so many steps, to where it is then.

    The temperature falls from `hot` to `cold`, shares of the objective.  The best plans of the way
    become top_k; returned is the objective at its end.
    """
    now, trial, dirty, state = work.now, work.trial, work.dirty, work.random
    hangs_on_replicas = t.zero or t.spreads_experts  # what fits into a stage
    for k in range(now.number[0]):
        refill(t, now, k, work)
    value = objective(t, limits, now, work, math.inf)
    if value < math.inf:
        remember(top_k, now, value)
    copy_plan(now, trial)
    cooling = (cold / hot) ** (1.0 / max(1, steps))
    temperature = hot
    for _ in range(steps):
        temperature *= cooling
        for k in range(len(dirty)):
            dirty[k] = 0
        packs = propose(t, limits, trial, dirty, state)
        new_value = math.inf
        if packs:
            pipelines = pipelines_of(trial)
            fits = True
            for k in range(trial.number[0]):
                if is_outdated(trial, k, pipelines) or (dirty[k] and hangs_on_replicas):
                    dirty[k] = 1
                    fits = fits and refill(t, trial, k, work)
            if fits:  # drawn before the price, most of which a plan that is worse does not need
                limit = math.inf
                if value < math.inf:
                    limit = value * (1.0 - temperature * math.log(uniform(state)))
                new_value = objective(t, limits, trial, work, limit)
        if new_value < math.inf:
            value = new_value
            remember(top_k, trial, value)
            now.number[0] = trial.number[0]
            for k in range(trial.number[0]):
                now.chosen[k] = trial.chosen[k]
                now.replicas[k] = trial.replicas[k]
                if dirty[k]:
                    copy_slot(trial, k, now, k)
        else:
            trial.number[0] = now.number[0]
            for k in range(now.number[0]):
                trial.chosen[k] = now.chosen[k]
                trial.replicas[k] = now.replicas[k]
                if dirty[k]:
                    copy_slot(now, k, trial, k)
    return value
