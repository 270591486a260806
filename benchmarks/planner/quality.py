"""How good plans are after how many seconds, and against simpler ways to find one.

Searches run in a process whose estimator is loaded, one at a time.  Every plan that is found is
offered to the references as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.placing import fastest
from benchmarks.planner.compositions import Case
from benchmarks.planner.references import BenchmarkReferences
from planner.errors import Infeasible
from planner.estimator.build_tables import pricing_of
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.candidate import Candidate, Evaluator
from planner.search.driver import search
from planner.search.searcher import Allowance, Searcher

WITHOUT_POLICY = Path("no policy")  # a folder that holds none, so that the engines are alone
BUDGETS_S = (0.05, 0.5, 1.0, 3.0)
ANNEALING_STEPS = 500_000
WARMING = 3000  # plans of the search that loads the estimator
SETTLED = 24  # of the best plans that annealing leaves, placed and priced

Say = Callable[[str], None]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One search.

    Attributes:
        model: its name.
        case: name of the composition.
        budget_s: what it was given.
        planning_s: what it took, placing and pricing included.
        throughput_samples_s: of its plan; 0 if it found none.
        last_step: of the search, that improved the plan.
    """

    model: str
    case: str
    budget_s: float
    planning_s: float
    throughput_samples_s: float
    last_step: str


@dataclass(frozen=True, slots=True)
class Simpler:
    """Plan of a simpler way, which the planner must not fall behind.

    Attributes:
        model: its name.
        case: name of the composition.
        way: `one template`.
        seconds: it took.
        throughput_samples_s: of its plan; 0 if it found none.
    """

    model: str
    case: str
    way: str
    seconds: float
    throughput_samples_s: float


def warm(model: str, case: Case) -> None:
    """One search that ends by plans, not seconds: all its stages run and load the estimator."""
    workload = case.workload(model)
    request = PlanRequest(
        workload=workload, composition=case.composition, budget_evaluations=WARMING
    )
    search(request, find_profile(workload))


def sample(
    model: str, case: Case, budget_s: float, references: BenchmarkReferences, clock: Clock
) -> Sample:
    """One search of the whole planner, its budget and its time in seconds of that clock."""
    workload = case.workload(model)
    profile = find_profile(workload)
    request = PlanRequest(
        workload=workload,
        composition=case.composition,
        budget_s=budget_s,
        budget_evaluations=None,
        policy=WITHOUT_POLICY,
    )
    started_s = clock()
    try:
        found = search(request, profile, clock)
    except Infeasible:
        return Sample(
            model=model,
            case=case.name,
            budget_s=budget_s,
            planning_s=clock() - started_s,
            throughput_samples_s=0.0,
            last_step="none",
        )
    reached = found.throughput_samples_s
    references.offer(model, case, found.plan, reached, f"auto, seed 0, {budget_s:g} s")
    last, before = "", 0.0
    for step in found.search_steps:
        if step.throughput_samples_s > before:
            last, before = step.method, step.throughput_samples_s
    return Sample(
        model=model,
        case=case.name,
        budget_s=budget_s,
        planning_s=found.planning_s,
        throughput_samples_s=reached,
        last_step=last,
    )


def samples(
    models: Sequence[str],
    chosen: Sequence[Case],
    budgets_s: Iterable[float],
    references: BenchmarkReferences,
    say: Say,
    clock: Clock,
) -> list[dict[str, Any]]:
    """Every model on every composition with every budget."""
    rows = []
    budgets = tuple(budgets_s)
    for model in models:
        warm(model, chosen[0])
        for case in chosen:
            for budget_s in budgets:
                one = sample(model, case, budget_s, references, clock)
                rows.append(asdict(one))
                say(
                    f"{model} {case.name} {budget_s:g} s: {one.throughput_samples_s:.2f} samples/s "
                    f"in {one.planning_s:.3f} s ({one.last_step})"
                )
    references.save()
    return rows


def simpler(
    models: Sequence[str], chosen: Sequence[Case], references: BenchmarkReferences, say: Say
) -> list[dict[str, Any]]:
    """The simpler ways on every composition, each with all its annealing steps."""
    rows = []
    for model in models:
        for case in chosen:
            for way, templates in (("one template", 1),):
                started_s = time.perf_counter()
                found = _annealed(model, case, templates)
                took_s = time.perf_counter() - started_s
                reached = 0.0 if found is None else found.cost.throughput_samples_s
                if found is not None:
                    found_by = f"{way}, {ANNEALING_STEPS} annealing steps"
                    references.offer(model, case, found.plan, reached, found_by)
                rows.append(asdict(Simpler(model, case.name, way, took_s, reached)))
                say(f"{model} {case.name} {way}: {reached:.2f} samples/s in {took_s:.1f} s")
    references.save()
    return rows


def _annealed(model: str, case: Case, templates: int) -> Candidate | None:
    workload, composition = case.workload(model), case.composition
    profile = find_profile(workload)
    pricing = pricing_of(workload, composition, profile)
    assert pricing is not None
    deepest = PlanRequest(workload=workload, composition=composition).deepest
    limits = SearchLimits(min(deepest, MAX_DEPTH), MAX_TEMPLATES, 0, math.inf, math.inf)
    worker = Searcher(pricing, limits, 0)
    worker.start()
    worker.walk(Allowance(ANNEALING_STEPS), templates=templates)
    evaluator = Evaluator(workload=workload, composition=composition, profile=profile)
    best: Candidate | None = None
    for index, (_, unplaced) in enumerate(worker.unplaced_candidates()):
        if index == SETTLED:
            break
        found = fastest(evaluator, unplaced)
        if found is None:
            continue
        if len(found.plan.templates) <= templates and (
            best is None or found.cost.iteration_s < best.cost.iteration_s
        ):
            best = found
    return best
