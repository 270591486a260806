"""Annealing over whole plans: one template at a time changes, all are priced together.

Replica counts and the order of stages are free.  With one template allowed, this finds the plans
whose replicas share the batch without remainder, which rule where replicas are many.
Invariant: the same tables, start, seed and steps give the same elites.
Source: research on plan search (annealing over whole plans with free replica counts).
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.bag import Bag, copy_bag, copy_slot, most_replicas, pipelines_of
from planner.estimator.bench import Bench
from planner.estimator.elites import Elites, remember
from planner.estimator.jit import allocating, jit
from planner.estimator.objective import Wishes, is_outdated, judged, objective, refill
from planner.estimator.tables import Ints, Tables
from planner.estimator.whole_plan import iteration_seconds
from planner.search.annealing.moves import propose
from planner.search.annealing.random import uniform


@jit
def anneal(
    t: Tables,
    wishes: Wishes,
    now: Bag,
    trial: Bag,
    bench: Bench,
    elites: Elites,
    state: Ints,
    steps: int,
    hot: float,
    cold: float,
) -> float:
    """Walk from the plan in `now` (filled and priced here) for so many steps.

    Args:
        t: what it prices with.
        wishes: objective and limits.
        now: the start; the end of the walk afterwards.
        trial: for the function's own use.
        bench: likewise.
        elites: takes the best plans.
        state: [1] of the random numbers.
        steps: plans that are priced, at most.
        hot: first temperature, a share of the objective.
        cold: last one.

    Returns:
        The objective at the end of the walk.
    """
    dirty = bench.dirty
    hangs_on_replicas = t.zero or t.spreads_experts  # what fits into a stage
    for k in range(now.number[0]):
        refill(t, now, k, bench)
    value = objective(t, wishes, now, bench, math.inf)
    if value < math.inf:
        remember(elites, now, value)
    copy_bag(now, trial)
    cooling = (cold / hot) ** (1.0 / max(1, steps))
    temperature = hot
    for _ in range(steps):
        temperature *= cooling
        for k in range(len(dirty)):
            dirty[k] = 0
        packs = propose(t, wishes, trial, dirty, state)
        new_value = math.inf
        if packs:
            pipelines = pipelines_of(trial)
            fits = True
            for k in range(trial.number[0]):
                if is_outdated(trial, k, pipelines) or (dirty[k] and hangs_on_replicas):
                    dirty[k] = 1
                    fits = fits and refill(t, trial, k, bench)
            if fits:  # drawn before the price, most of which a plan that is worse does not need
                limit = math.inf
                if value < math.inf:
                    limit = value * (1.0 - temperature * math.log(uniform(state)))
                new_value = objective(t, wishes, trial, bench, limit)
        if new_value < math.inf:
            value = new_value
            remember(elites, trial, value)
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


@allocating
def start(t: Tables, wishes: Wishes, now: Bag, bench: Bench, elites: Elites) -> int:
    """Price plans to start from; returns how many.

    Every template of one option alone, as often as it fits and once; then plans of pipelines that
    each stay on one node class, the best of each, which join one by one, the fastest first.
    """
    classes = len(t.node_gpus)
    best = np.zeros(classes)
    option_of = np.zeros(classes, np.int64)
    depth_of = np.zeros(classes, np.int64)
    replicas_of = np.zeros(classes, np.int64)
    for kind in range(classes):
        best[kind] = math.inf
    priced = 0
    now.number[0] = 1
    for option in range(len(t.option_tp)):
        kind = t.option_type[option]
        for depth in range(1, wishes.deepest + 1):
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
                if refill(t, now, 0, bench):
                    seconds = iteration_seconds(t, now, bench.price, math.inf)
                    value = judged(t, wishes, now, seconds)
                    if value < math.inf:
                        remember(elites, now, value)
                    if replicas == most and seconds < best[kind]:
                        best[kind] = seconds
                        option_of[kind] = option
                        depth_of[kind] = depth
                        replicas_of[kind] = most
    now.number[0] = 0
    for k in range(min(classes, wishes.max_templates)):
        kind = 0
        for other in range(classes):
            if best[other] < best[kind]:
                kind = other
        if best[kind] == math.inf:
            break
        best[kind] = math.inf
        now.number[0] = k + 1
        now.depth[k] = depth_of[kind]
        now.replicas[k] = replicas_of[kind]
        for s in range(depth_of[kind]):
            now.options[k, s] = option_of[kind]
        for j in range(k + 1):
            refill(t, now, j, bench)
        priced += 1
        value = objective(t, wishes, now, bench, math.inf)
        if value < math.inf:
            remember(elites, now, value)
    return priced
