"""What a search has found so far, in the order that it prefers.

Candidates are compared by (nodes that hold every piece, up to the number asked; objective).
Invariant: the best never gets worse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from planner.candidate import Candidate
from planner.request import PlanRequest

NEAR = 1.005  # plans within half a per cent count as equally good


@dataclass(slots=True)
class Findings:
    """All candidates of one search.

    Attributes:
        request: says what is preferred.
        best: so far.
        found: every candidate, in the order of their finding.
        evaluations: plans priced so far, by whatever stage.
    """

    request: PlanRequest
    best: Candidate | None = None
    found: list[Candidate] = field(default_factory=list)
    evaluations: int = 0

    def offer(self, candidate: Candidate | None) -> bool:
        """Keep a candidate; whether it is the best so far."""
        if candidate is None or self.objective(candidate) == math.inf:
            return False
        self.found.append(candidate)
        if self.best is None or self.rank(candidate) < self.rank(self.best):
            self.best = candidate
            return True
        return False

    def rank(self, candidate: Candidate) -> tuple[int, float]:
        """Smaller is better."""
        return self.rank_of(candidate.holders, self.objective(candidate))

    def rank_of(self, holders: int, objective: float) -> tuple[int, float]:
        """Smaller is better."""
        return -min(holders, self.request.min_holders), objective

    def objective(self, candidate: Candidate) -> float:
        """Seconds of an iteration."""
        return candidate.price.iteration_s
