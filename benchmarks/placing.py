"""The best placement of a plan that was priced before its placement."""

from __future__ import annotations

from planner.search.candidate import Candidate, Evaluator, UnplacedCandidate


def fastest(evaluator: Evaluator, unplaced: UnplacedCandidate) -> Candidate | None:
    """The placement with the shortest iteration; None if none fits."""
    placed = evaluator.placed(unplaced)
    return min(placed, key=lambda one: one.cost.iteration_s, default=None)
