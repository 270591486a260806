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


@dataclass(frozen=True, slots=True, kw_only=True)
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
            request = PlanRequest(workload=workload, composition=case.composition)
            started_s = clock()
            proven = bound(
                request,
                profile,
                PlanAnswer(
                    plan=plan,
                    cost=priced,
                    holders_min=1,
                    search_steps=(),
                    planning_s=0.0,
                    bytes_to_move=None,
                    idle=(),
                ),
            )
            took_s = clock() - started_s
            fewest = min(m for template in plan.templates for m in template.micro_batches)
            assumes = "; ".join(proven.bound_assumes)
            rows.append(
                asdict(
                    Gap(
                        model=model,
                        case=case.name,
                        micro_batches=fewest,
                        gap_percent=proven.gap_percent,
                        seconds=took_s,
                        assumes=assumes,
                    )
                )
            )
            say(f"{model} {case.name}: gap {proven.gap_percent} % in {took_s:.1f} s, M {fewest}")
    return rows
