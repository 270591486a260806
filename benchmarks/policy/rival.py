"""An honest rival of the learned start: random plans and slowest-first plans, then local search.

200 random plans and all replicated templates of up to six stages, slowest first, are priced within
half of the time; annealing from the best of them has the rest.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.evaluation.trial import Trial
from benchmarks.placing import fastest
from benchmarks.policy.cases import workload_of
from benchmarks.policy.known import Clock
from planner.estimator.build_tables import pricing_of
from planner.estimator.jit import jit
from planner.estimator.objective import SearchLimits, objective, refill
from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES, Ints, Tables
from planner.estimator.top_k import TopK, new_top_k, offer, remember
from planner.estimator.unplaced_plan import UnplacedPlan, most_replicas, new_plan
from planner.estimator.workspace import Workspace, new_workspace
from planner.policy.propose import propose
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.candidate import Evaluator
from planner.search.searcher import COOL, Allowance, Searcher
from planner.training.composition_sets import ListedComposition

RANDOM = 200
DEEPEST = 6
ENUMERATED_SHARE = 0.5  # of the time, for random plans and enumeration
PART = 200  # plans between two looks at the clock


@jit
def enumerate_some(
    t: Tables,
    limits: SearchLimits,
    slowest_first: Ints,
    now: Ints,
    most: int,
    plan: UnplacedPlan,
    work: Workspace,
    top_k: TopK,
) -> int:
    """Evaluate the next templates, each as often as it fits or a power of two; returns how many.

    Args:
        t: what it prices with.
        limits: objective and limits.
        slowest_first: [O] the options.
        now: [1 + DEEPEST] depth and places in `slowest_first`, never falling; goes on from there.
            Depth 0 means that it is over.
        most: plans to price, about.
        plan: for the function's own use.
        work: likewise.
        top_k: takes the best.
    """
    priced = 0
    plan.number[0] = 1
    while priced < most and now[0] > 0:
        plan.depth[0] = now[0]
        for s in range(now[0]):
            plan.options[0, s] = slowest_first[now[1 + s]]
        plan.replicas[0] = 1
        replicas = most_replicas(t, plan, 0)
        priced += 1  # also where there is no room, so that a part ends
        if replicas >= 1:
            power = 2 ** int(math.log2(replicas))
            price_alone(t, limits, replicas, plan, work, top_k)
            if power < replicas:
                price_alone(t, limits, power, plan, work, top_k)
                priced += 1
        advance(now, len(slowest_first))
    return priced


@jit
def price_alone(
    t: Tables,
    limits: SearchLimits,
    replicas: int,
    plan: UnplacedPlan,
    work: Workspace,
    top_k: TopK,
) -> None:
    """Keep the plan of the first slot, so many replicas of it, if it is good."""
    plan.replicas[0] = replicas
    if refill(t, plan, 0, work):
        value = objective(t, limits, plan, work, math.inf)
        if value < math.inf:
            remember(top_k, plan, value)


@jit
def advance(now: Ints, options: int) -> None:
    """The next template: places that never fall, then one stage more; depth 0 at the end."""
    depth = now[0]
    s = depth - 1
    while s >= 0 and now[1 + s] == options - 1:
        s -= 1
    if s >= 0:
        place = now[1 + s] + 1
        for r in range(s, depth):
            now[1 + r] = place
        return
    now[:] = 0
    if depth < len(now) - 1:
        now[0] = depth + 1


def rival(model: str, one: ListedComposition, budget_s: float, seed: int, clock: Clock) -> Trial:
    """Its plan within so many seconds, tables included; placing comes after, as for the engines."""
    begun_s = clock()
    workload = workload_of(model, one)
    profile = find_profile(workload)
    pricing = pricing_of(workload, one.composition, profile)
    if pricing is None:
        return Trial(
            method="search",
            throughput_samples_s=0.0,
            seconds=0.0,
            evaluations=0,
            plan=None,
            note="nothing is profiled",
        )
    tables = pricing.tables
    deepest = min(PlanRequest(workload=workload, composition=one.composition).deepest, MAX_DEPTH)
    limits = SearchLimits(deepest, MAX_TEMPLATES, 0, math.inf, math.inf)
    worker = Searcher(pricing, limits, seed)
    found = propose(None, pricing, limits, RANDOM, seed)
    pool, plan, work = new_top_k(), new_plan(), new_workspace(tables)
    block_s = tables.block_s[:, 0, 0, :].max(axis=1)
    slowest_first = np.argsort(-block_s, kind="stable").astype(np.int64)
    now = np.zeros(1 + min(DEEPEST, deepest), np.int64)
    now[0] = 1
    evaluations = found.evaluations
    while now[0] and clock() - begun_s < ENUMERATED_SHARE * budget_s:
        evaluations += enumerate_some(tables, limits, slowest_first, now, PART, plan, work, pool)
    for top_k in (found.top_k, pool):
        for row in range(int(top_k.number[0])):
            offer(top_k, row, worker.top_k)
    worker.evaluations = evaluations
    worker.walk(Allowance(end_s=begun_s + budget_s, now_s=clock), templates=MAX_TEMPLATES, hot=COOL)
    evaluator = Evaluator(workload=workload, composition=one.composition, profile=profile)
    for _, unplaced in worker.unplaced_candidates():
        best = fastest(evaluator, unplaced)
        if best is not None:
            took_s = clock() - begun_s
            samples_s = best.cost.throughput_samples_s
            return Trial(
                method="search",
                throughput_samples_s=samples_s,
                seconds=took_s,
                evaluations=worker.evaluations,
                plan=best.plan,
            )
    took_s = clock() - begun_s
    return Trial(
        method="search",
        throughput_samples_s=0.0,
        seconds=took_s,
        evaluations=worker.evaluations,
        plan=None,
        note="no plan",
    )
