"""How far the planner's plan of 3 s stays below the proven bound, and what the proof takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.bound import bound
from planner.errors import Infeasible
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.driver import search
from tests.benchmarks.planner.compositions import Case
from tests.benchmarks.planner.quality import WITHOUT_POLICY

BUDGET_S = 3.0


@dataclass(frozen=True, slots=True)
class Gap:
    """One plan and its bound.

    Attributes:
        model: its name.
        case: name of the composition.
        micro_batches: the fewest of any replica.
        gap_percent: of the bound; None where there is no proof.
        seconds: that the proof took.
        assumes: what it rests on, or what failed.
    """

    model: str
    case: str
    micro_batches: int
    gap_percent: float | None
    seconds: float
    assumes: str


def gaps(
    models: Sequence[str],
    chosen: Sequence[Case],
    say: Callable[[str], None],
    clock: Callable[[], float],
) -> list[dict[str, Any]]:
    """Every model on every composition."""
    rows = []
    for model in models:
        for case in chosen:
            workload = case.workload(model)
            profile = find_profile(workload)
            request = PlanRequest(
                workload,
                case.composition,
                budget_s=BUDGET_S,
                budget_evaluations=None,
                policy=WITHOUT_POLICY,
            )
            try:
                found = search(request, profile, clock)
            except Infeasible as error:
                say(f"{model} {case.name}: {error}")
                continue
            started_s = clock()
            proven = bound(request, profile, found)
            took_s = clock() - started_s
            fewest = min(m for template in found.plan.templates for m in template.micro_batches)
            assumes = "; ".join(proven.bound_assumes)
            rows.append(asdict(Gap(model, case.name, fewest, proven.gap_percent, took_s, assumes)))
            say(f"{model} {case.name}: gap {proven.gap_percent} % in {took_s:.1f} s, M {fewest}")
    return rows
