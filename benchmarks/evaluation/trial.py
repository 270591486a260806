"""One method on one composition: its plan, what that took, and how good it is after how many plans.

A curve is made of searches with growing budgets, each from its beginning: its point at N plans is
what a user who can afford N plans would have got, or the best of fewer.
Invariants: curves never fall; a method that cannot answer says why, and nothing else stops.
Source: Heddle, section 6.4 ("Search efficiency").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import Any, NamedTuple

from planner.api import answer
from planner.errors import InvalidPolicy, NoPolicy, PlanningError, PolicyMisfit
from planner.plans.plan import Plan
from planner.profiles.profile import Profile
from planner.request import Method, PlanRequest

FIRST_BUDGET = 16  # plans of a curve's first point
GROWTH = 4  # from one point of a curve to the next


class CurvePoint(NamedTuple):
    """The best throughput after so many plans were priced."""

    evaluations: int
    throughput_samples_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Result of one method on one composition."""

    method: Method  # that was asked
    throughput_samples_s: float  # of its plan; 0 if it has none
    seconds: float  # that it took, placing and pricing included
    evaluations: int  # plans it priced
    plan: Plan | None  # None if it has none
    took_part: bool = True  # whether it is to be judged; not if no policy fits the question
    note: str = ""  # why there is no plan, or what the answer says besides its plan
    curve: tuple[CurvePoint, ...] = ()  # best so far by evaluation; empty if nobody asked for it

    def to_json(self) -> dict[str, Any]:
        """The row of `methods[]`; the plan itself is not in it, only its digest."""
        return {
            "method": self.method,
            "throughput_samples_s": self.throughput_samples_s,
            "seconds": self.seconds,
            "evaluations": self.evaluations,
            "plan_digest": None if self.plan is None else self.plan.digest,
            "note": self.note,
            "curve": [point._asdict() for point in self.curve],
        }


def try_out(
    request: PlanRequest, profile: Profile, clock: Callable[[], float] = time.perf_counter
) -> Trial:
    """Ask once, timed by that clock; a method that cannot answer has a note instead of a plan."""
    try:
        found = answer(request, profile, clock)
    except PlanningError as error:
        took_part = not isinstance(error, NoPolicy | InvalidPolicy | PolicyMisfit)
        return Trial(
            method=request.method,
            throughput_samples_s=0.0,
            seconds=0.0,
            evaluations=0,
            plan=None,
            took_part=took_part,
            note=str(error),
        )
    return Trial(
        method=request.method,
        throughput_samples_s=found.throughput_samples_s,
        seconds=found.planning_s,
        evaluations=found.search_steps[-1].evaluations if found.search_steps else 0,
        plan=found.plan,
        note="; ".join(found.notes),
    )


def curve_budgets(most: int) -> tuple[int, ...]:
    """Plans of a curve's points: 16, 64, 256, ... and the most; none if that is 0."""
    budgets = takewhile(lambda budget: budget < most, (FIRST_BUDGET * GROWTH**k for k in count()))
    return (*budgets, most) if most else ()


def try_budgets(
    request: PlanRequest, profile: Profile, budgets: Iterable[int], first: Trial
) -> tuple[Trial, ...]:
    """Ask again with each budget of plans.

    A method that builds plans gets as many rollouts as price about so many, judged by a first
    trial of the request as it is; without a plan in that there are no more trials.
    """
    if first.plan is None:
        return ()
    rollouts_per_plan = request.rollouts / max(1, first.evaluations)
    asked = (
        replace(
            request,
            budget_s=None,
            budget_evaluations=budget,
            rollouts=max(1, round(budget * rollouts_per_plan)),
        )
        for budget in budgets
    )
    return tuple(try_out(one, profile) for one in asked)


def best_so_far(trials: Iterable[Trial]) -> tuple[CurvePoint, ...]:
    """The curve of these trials; each is plotted at the plans that it did price."""
    best, points = 0.0, dict[int, float]()
    found = [(one.evaluations, one.throughput_samples_s) for one in trials if one.plan is not None]
    for evaluations, samples_s in sorted(found):
        best = points[evaluations] = max(best, samples_s)
    return tuple(map(CurvePoint, points.keys(), points.values()))
