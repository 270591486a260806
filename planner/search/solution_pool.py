"""Finds of a search so far, in the order that it prefers.

Candidates are compared by (nodes that hold every piece, up to the number asked; objective).
Invariant: the best never gets worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from planner.cost.money import highest_price, minimised_price, plan_price
from planner.request import PlanRequest
from planner.search.candidate import Candidate

NEAR_RATIO = 1.005  # plans within half a per cent count as equally good


def minimised(request: PlanRequest, iteration_s: float, per_hour: float | None) -> float:
    """What a request makes small: seconds of an iteration, or money of one, whatever its limits.

    Args:
        request: names its objective.
        iteration_s: of a plan.
        per_hour: price of its nodes; None: unknown.
    """
    if request.objective == "throughput":
        return iteration_s
    return math.inf if per_hour is None else minimised_price(per_hour) * iteration_s


@dataclass(slots=True)
class SolutionPool:
    """All candidates of one search; the best of them is its incumbent.

    Attributes:
        request: says what is preferred.
        best: so far.
        found: every candidate, in the order of their finding.
        evaluations: plans priced so far, by whatever step.
        nearest: of those beyond a limit of the request the cheapest, or the fastest where money is
            not limited, to say by how much.
    """

    request: PlanRequest
    best: Candidate | None = None
    found: list[Candidate] = field(default_factory=list)
    evaluations: int = 0
    nearest: Candidate | None = None

    def offer(self, candidate: Candidate | None) -> bool:
        """Keep a candidate; whether it is the best so far."""
        if candidate is None:
            return False
        if self.objective(candidate) == math.inf:
            if self.nearest is None or self._beyond(candidate) < self._beyond(self.nearest):
                self.nearest = candidate
            return False
        self.found.append(candidate)
        if self.best is None or self.rank(candidate) < self.rank(self.best):
            self.best = candidate
            return True
        return False

    def choose(self, candidates: Iterable[Candidate]) -> Candidate | None:
        """The best of some; of those beyond a limit the nearest to it; None: there is none."""
        return min(candidates, key=lambda one: (self.rank(one), self._beyond(one)), default=None)

    def rank(self, candidate: Candidate) -> tuple[int, float]:
        """Smaller is better."""
        return self.rank_of(candidate.holders, self.objective(candidate))

    def rank_of(self, holders: int, objective: float) -> tuple[int, float]:
        """Smaller is better."""
        return -min(holders, self.request.min_holders), objective

    def objective(self, candidate: Candidate) -> float:
        """Seconds of an iteration or money per sample; infinite beyond a limit of the request."""
        request, priced = self.request, candidate.cost
        if request.min_throughput and priced.throughput_samples_s < request.min_throughput:
            return math.inf
        per_hour = plan_price(candidate.plan, request.composition) if request.needs_prices else None
        if request.needs_prices and per_hour is None:
            return math.inf
        if per_hour is not None and per_hour > highest_price(request.max_price):
            return math.inf
        return minimised(request, priced.iteration_s, per_hour)

    def _beyond(self, candidate: Candidate) -> tuple[float, float]:
        """Order of plans beyond a limit: money too much, then seconds."""
        per_hour, most = None, self.request.max_price
        if most is not None:
            per_hour = plan_price(candidate.plan, self.request.composition)
        dear = 0.0 if per_hour is None or most is None else max(0.0, per_hour - most)
        return dear, candidate.cost.iteration_s
