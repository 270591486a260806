"""How good the best of some rollouts is, and what they cost, of the policy and of uniform choices.

Two times are measured, with estimator and policy loaded: that of the rollouts alone, and of the
whole answer with its tables, placement and price.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from benchmarks.evaluation.references import References
from benchmarks.evaluation.trial import try_out
from benchmarks.policy.cases import workload_of
from benchmarks.policy.known import Clock, Say
from planner.errors import PlanningError
from planner.estimator.build_tables import Pricing, pricing_of
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES
from planner.policy.propose import propose
from planner.policy.weights import Policy, find_policy
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.training.composition_sets import ListedComposition

ROLLOUTS = (16, 128)
SEEDS = (0, 1, 2)
METHODS: tuple[Literal["policy", "random"], ...] = ("policy", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """Some rollouts on one composition.

    Attributes:
        model: its name.
        case: name of the composition.
        method: `policy` or `random`.
        rollouts: their number; the best counts.
        throughput_samples_s: mean over the seeds; 0 for a seed without a plan.
        rollouts_s: median over the seeds, of the rollouts alone.
        answer_s: likewise, of the whole answer.
        evaluations: mean over the seeds, plans priced.
        note: why there is no plan, if there is none.
    """

    model: str
    case: str
    method: str
    rollouts: int
    throughput_samples_s: float
    rollouts_s: float
    answer_s: float
    evaluations: float
    note: str


def measure(
    models: Sequence[str],
    chosen: dict[str, Sequence[ListedComposition]],
    references: References,
    say: Say,
    clock: Clock,
) -> list[dict[str, Any]]:
    """Both methods, both numbers of rollouts, every composition."""
    rows = []
    for model in models:
        for method in METHODS:
            for rollouts in ROLLOUTS:
                _roll(
                    model, chosen[model][0], method, rollouts, references, clock
                )  # loads and warms
                for one in chosen[model]:
                    row = _roll(model, one, method, rollouts, references, clock)
                    rows.append(asdict(row))
                    say(
                        f"{model} {one.name} {method} {rollouts}: "
                        f"{row.throughput_samples_s:.2f} samples/s, rollouts "
                        f"{row.rollouts_s * 1e3:.1f} ms, answer {row.answer_s * 1e3:.1f} ms "
                        f"{row.note}"
                    )
        references.save()
    return rows


def _roll(
    model: str,
    one: ListedComposition,
    method: Literal["policy", "random"],
    rollouts: int,
    references: References,
    clock: Clock,
) -> Rolled:
    workload = workload_of(model, one)
    profile = find_profile(workload)
    asked = PlanRequest(
        workload=workload,
        composition=one.composition,
        method=method,
        rollouts=rollouts,
        budget_evaluations=None,
    )
    trials = [try_out(replace(asked, seed=seed), profile, clock) for seed in SEEDS]
    for seed, trial in zip(SEEDS, trials, strict=True):
        if trial.plan is not None:
            by = f"{method}, seed {seed}, {rollouts} rollouts"
            references.offer(model, one, trial.plan, trial.throughput_samples_s, by)
    pricing = pricing_of(workload, one.composition, profile)
    alone_s = [math.nan]
    if pricing is not None and any(trial.took_part for trial in trials):
        policy = _policy(model) if method == "policy" else None
        alone_s = [_seconds(policy, pricing, asked, seed, clock) for seed in SEEDS]
    return Rolled(
        model=model,
        case=one.name,
        method=method,
        rollouts=rollouts,
        throughput_samples_s=statistics.fmean(trial.throughput_samples_s for trial in trials),
        rollouts_s=statistics.median(alone_s),
        answer_s=statistics.median(trial.seconds for trial in trials),
        evaluations=statistics.fmean(trial.evaluations for trial in trials),
        note=next((trial.note for trial in trials if trial.plan is None), ""),
    )


def _policy(model: str) -> Policy | None:
    try:
        return find_policy(model)
    except PlanningError:
        return None


def _seconds(
    policy: Policy | None, pricing: Pricing, asked: PlanRequest, seed: int, clock: Clock
) -> float:
    limits = SearchLimits(min(asked.deepest, MAX_DEPTH), MAX_TEMPLATES, 0, math.inf, math.inf)
    begun_s = clock()
    propose(policy, pricing, limits, asked.rollouts, seed)
    return clock() - begun_s
