"""`auto`, which begins with the policy, against the engines and an honest rival at equal times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from benchmarks.evaluation.references import References
from benchmarks.evaluation.trial import Trial, try_out
from benchmarks.policy.cases import workload_of
from benchmarks.policy.known import Clock, Say
from benchmarks.policy.rival import rival
from planner.profiles.generator import find_profile
from planner.request import Method, PlanRequest
from planner.training.composition_sets import ListedComposition

BUDGETS_S = (0.05, 0.5, 2.0)
RIVAL_S = 0.05
RIVAL = "rival"
SEEDS = (0, 1, 2)  # one search differs from the next by some per cent
METHODS: tuple[Method, ...] = ("auto", "search", "columns")
WARMING = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Searches with several seeds; figures are their means.

    Attributes:
        model: its name.
        case: name of the composition.
        method: `auto`, an engine, or `rival`.
        budget_s: what each was given.
        throughput_samples_s: of its plan; 0 without one.
        seconds: what it took, placing included.
        evaluations: plans priced.
    """

    model: str
    case: str
    method: str
    budget_s: float
    throughput_samples_s: float
    seconds: float
    evaluations: float


def measure(
    models: Sequence[str],
    chosen: dict[str, Sequence[ListedComposition]],
    references: References,
    say: Say,
    clock: Clock,
    budgets_s: Sequence[float] = BUDGETS_S,
) -> list[dict[str, Any]]:
    """Every method with every budget on every composition, in a process that is warm."""
    rows = []
    for model in models:
        first = chosen[model][0]
        for method in METHODS:
            workload = workload_of(model, first)
            asked = PlanRequest(
                workload=workload,
                composition=first.composition,
                method=method,
                budget_evaluations=WARMING,
            )
            try_out(asked, find_profile(workload))
        rival(model, first, RIVAL_S, 0, clock)
        for one in chosen[model]:
            for budget_s in budgets_s:
                for method in METHODS:
                    trials = [_search(model, one, method, budget_s, s, clock) for s in SEEDS]
                    rows.append(_row(model, one, method, budget_s, trials, references, say))
            trials = [rival(model, one, RIVAL_S, seed, clock) for seed in SEEDS]
            rows.append(_row(model, one, RIVAL, RIVAL_S, trials, references, say))
        references.save()
    return rows


def _search(
    model: str, one: ListedComposition, method: Method, budget_s: float, seed: int, clock: Clock
) -> Trial:
    workload = workload_of(model, one)
    asked = PlanRequest(
        workload=workload,
        composition=one.composition,
        method=method,
        seed=seed,
        budget_s=budget_s,
        budget_evaluations=None,
    )
    return try_out(asked, find_profile(workload), clock)


def _row(
    model: str,
    one: ListedComposition,
    method: str,
    budget_s: float,
    trials: Sequence[Trial],
    references: References,
    say: Say,
) -> dict[str, Any]:
    for seed, trial in zip(SEEDS, trials, strict=True):
        if trial.plan is not None:
            by = f"{method}, seed {seed}, {budget_s:g} s"
            references.offer(model, one, trial.plan, trial.throughput_samples_s, by)
    reached = fmean(trial.throughput_samples_s for trial in trials)
    say(f"{model} {one.name} {method} {budget_s:g} s: {reached:.2f} samples/s")
    return asdict(
        Timed(
            model=model,
            case=one.name,
            method=method,
            budget_s=budget_s,
            throughput_samples_s=reached,
            seconds=fmean(trial.seconds for trial in trials),
            evaluations=fmean(trial.evaluations for trial in trials),
        )
    )
