"""`auto`, which begins with the policy, against the engines and an honest rival at equal times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.composition_sets import ListedComposition
from planner.evaluation.references import References
from planner.evaluation.trial import Trial, try_out
from planner.generator import find_profile
from planner.request import Method, PlanRequest
from tests.benchmarks.policy.cases import workload_of
from tests.benchmarks.policy.known import Clock, Say
from tests.benchmarks.policy.rival import rival

BUDGETS_S = (0.05, 0.5, 2.0)
RIVAL_S = 0.05
RIVAL = "rival"
METHODS: tuple[Method, ...] = ("auto", "search", "columns")
WARMING = 3000


@dataclass(frozen=True, slots=True)
class Timed:
    """One search.

    Attributes:
        model: its name.
        case: name of the composition.
        method: `auto`, an engine, or `rival`.
        budget_s: what it was given.
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
    evaluations: int


def measure(
    models: Sequence[str],
    chosen: dict[str, Sequence[ListedComposition]],
    references: References,
    say: Say,
    clock: Clock,
) -> list[dict[str, Any]]:
    """Every method with every budget on every composition, in a process that is warm."""
    rows = []
    for model in models:
        first = chosen[model][0]
        for method in METHODS:
            workload = workload_of(model, first)
            asked = PlanRequest(
                workload, first.composition, method=method, budget_evaluations=WARMING
            )
            try_out(asked, find_profile(workload))
        rival(model, first, RIVAL_S, 0, clock)
        for one in chosen[model]:
            for budget_s in BUDGETS_S:
                for method in METHODS:
                    trial = _search(model, one, method, budget_s, clock)
                    rows.append(_row(model, one, method, budget_s, trial, references, say))
            trial = rival(model, one, RIVAL_S, 0, clock)
            rows.append(_row(model, one, RIVAL, RIVAL_S, trial, references, say))
        references.save()
    return rows


def _search(
    model: str, one: ListedComposition, method: Method, budget_s: float, clock: Clock
) -> Trial:
    workload = workload_of(model, one)
    asked = PlanRequest(
        workload, one.composition, method=method, budget_s=budget_s, budget_evaluations=None
    )
    return try_out(asked, find_profile(workload), clock)


def _row(
    model: str,
    one: ListedComposition,
    method: str,
    budget_s: float,
    trial: Trial,
    references: References,
    say: Say,
) -> dict[str, Any]:
    if trial.plan is not None:
        by = f"{method}, seed 0, {budget_s:g} s"
        references.offer(model, one, trial.plan, trial.throughput_samples_s, by)
    say(f"{model} {one.name} {method} {budget_s:g} s: {trial.throughput_samples_s:.2f} samples/s")
    return asdict(
        Timed(
            model,
            one.name,
            method,
            budget_s,
            trial.throughput_samples_s,
            trial.seconds,
            trial.evaluations,
        )
    )
