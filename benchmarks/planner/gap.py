"""How far the best known plans stay below the proven bound, and what the proof takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.bound.upper_bound import bound
from benchmarks.planner.compositions import Case
from benchmarks.planner.references import BenchmarkReferences
from planner.cost.evaluate import cost_of
from planner.profiles.generator import find_profile
from planner.request import PlanAnswer, PlanRequest


@dataclass(frozen=True, slots=True)
class Gap:
    """One plan and its bound.

    Attributes:
        model: its name.
        case: name of the composition.
        micro_batches: the fewest of any replica.
        gap_percent: of the bound.
        seconds: that the proof took.
        assumes: what it rests on.
    """

    model: str
    case: str
    micro_batches: int
    gap_percent: float
    seconds: float
    assumes: str


def gaps(
    models: Sequence[str],
    chosen: Sequence[Case],
    references: BenchmarkReferences,
    say: Callable[[str], None],
    clock: Callable[[], float],
) -> list[dict[str, Any]]:
    """The reference plan of every model on every composition."""
    rows = []
    for model in models:
        for case in chosen:
            plan = references.of(model, case).plan
            if plan is None:
                say(f"{model} {case.name}: no plan is known")
                continue
            workload = case.workload(model)
            profile = find_profile(workload)
            priced = cost_of(plan, workload, case.composition, profile)
            request = PlanRequest(workload, case.composition)
            started_s = clock()
            proven = bound(request, profile, PlanAnswer(plan, priced, 1, (), 0.0, None, ()))
            took_s = clock() - started_s
            fewest = min(m for template in plan.templates for m in template.micro_batches)
            assumes = "; ".join(proven.bound_assumes)
            rows.append(asdict(Gap(model, case.name, fewest, proven.gap_percent, took_s, assumes)))
            say(f"{model} {case.name}: gap {proven.gap_percent} % in {took_s:.1f} s, M {fewest}")
    return rows
