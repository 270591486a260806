"""How far a search is: its budget, the plans that it found, and its steps so far.

Every engine works on the same state, so that seconds and plans are counted once.
Invariant: what an engine estimates counts only after it was placed and priced by the evaluator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter

from planner.request import PlanRequest, SearchStep
from planner.search.budget import Budget
from planner.search.candidate import Evaluator, UnplacedCandidate
from planner.search.fill import Structure
from planner.search.solution_pool import SolutionPool

PLACED = 16  # plans that are placed and priced at the end of the search
# A plan that is estimated so much worse than the best is not placed; estimates may be as much off.
HOPELESS_RATIO = 1.02
KEPT_BACK = 0.1  # of the seconds left, at most, to place the last plans
KEPT_TO_STAY = 0.2  # likewise where a plan runs: then some are placed again, to move fewer bytes

# (estimated objective, plan before its placement)
UnplacedCandidates = Iterable[tuple[float, UnplacedCandidate]]
Kind = frozenset[Structure]  # the largest template of a plan on each set of GPU types


class SearchState:
    """The state of one search.

    Attributes:
        request: what is asked.
        evaluator: places and prices plans.
        budget: what may be spent.
        pool: all plans so far, placed.
        steps: of the search so far.
        estimates_are_close: whether estimates of all plans are off alike; else the best plan counts
            as the slower of its estimate and its price.
    """

    def __init__(self, request: PlanRequest, evaluator: Evaluator, budget: Budget) -> None:
        """Begin with no plan."""
        self.request, self.evaluator, self.budget = request, evaluator, budget
        self.pool = SolutionPool(request)
        self.steps: list[SearchStep] = []
        self.estimates_are_close = True
        self._placed: set[UnplacedCandidate] = set()
        self._place_s = 0.0  # what placing and pricing a plan takes
        self._best = math.inf  # estimated, of the plan that is best
        self._kinds: set[Kind] = set()  # of the plans that were placed
        self._waiting: dict[Kind, tuple[float, UnplacedCandidate]] = {}  # the best plan of others

    @property
    def left_to_search_s(self) -> float:
        """Seconds that are left, without those that placing the last plans will take."""
        left_s = self.budget.left_s
        if left_s == math.inf:
            return left_s
        placed, share = PLACED, KEPT_BACK
        if self.request.current is not None:
            placed, share = 2 * PLACED, KEPT_TO_STAY
        return left_s - max(2 * self._place_s, min(placed * self._place_s, share * left_s))

    @property
    def is_late(self) -> bool:
        """Whether the seconds that are left do not suffice to place and price one more plan."""
        return self.budget.left_s < self._place_s

    @property
    def is_found(self) -> bool:
        """Whether there is a plan, if only one beyond a limit of the request."""
        return self.pool.best is not None or self.pool.nearest is not None

    def record(self, name: str, begun_s: float) -> None:
        """Write down a step of the search, as one with an equal one that gained nothing more."""
        best = self.pool.best
        samples = best.cost.throughput_samples_s if best else 0.0
        seconds = self.budget.now_s() - begun_s
        if self.steps and self.steps[-1].throughput_samples_s == samples:
            for index, step in enumerate(self.steps):
                if (step.method, step.throughput_samples_s) == (name, samples):  # once more
                    seconds += step.seconds
                    del self.steps[index]
                    break
        self.steps.append(SearchStep(name, self.pool.evaluations, samples, seconds))

    def place(self, unplaced_candidates: UnplacedCandidates, most: int) -> None:
        """Place and price plans, the best first, as many as time allows."""
        for rank, (value, unplaced) in enumerate(islice(unplaced_candidates, most)):
            is_late = self.is_late if rank else self.budget.left_s < 0.0
            if unplaced in self._placed or (self.pool.best and is_late):
                continue
            if self._is_hopeless(value) and self._is_held():
                continue
            self._place(value, unplaced)

    def place_other_kinds(self) -> None:
        """Place the best plan of each kind that was noted and that no placed plan has."""
        for value, unplaced in sorted(self._waiting.values(), key=itemgetter(0))[:PLACED]:
            if self.is_late:
                return
            if not self._is_hopeless(value):
                self._place(value, unplaced)

    def note(self, unplaced_candidates: UnplacedCandidates) -> None:
        """Keep the best plan of each kind, the best first, to be placed when others are.

        Estimates of one kind are off alike, and its plans crowd out others that are no worse.
        """
        for value, unplaced in unplaced_candidates:
            if self._is_hopeless(value):
                continue
            kind = kind_of(unplaced)
            if kind not in self._kinds and value < self._waiting.get(kind, (math.inf,))[0]:
                self._waiting[kind] = value, unplaced

    def place_until_better(self, unplaced_candidates: UnplacedCandidates) -> None:
        """Place and price plans, the best first, until one is the best so far.

        Where it turns out slower than others are estimated, those follow while there is time.
        Where a plan is there already, none but the first is placed when time is up.
        """
        is_better = False
        for rank, (value, unplaced) in enumerate(unplaced_candidates):
            if is_better and not self._promises_more(value):
                return
            if rank and self.pool.best is not None and self.is_late:
                return
            is_better |= self._place(value, unplaced)

    def _promises_more(self, value: float) -> bool:
        """Whether a plan of that estimate may well beat the best so far, and there is time."""
        best = self.pool.best
        assert best is not None
        return not self.is_late and value * HOPELESS_RATIO < self.pool.objective(best)

    def _is_hopeless(self, value: float) -> bool:
        """Whether a plan of that estimate is worse than the best one."""
        best = self.pool.best
        if self.estimates_are_close or best is None:
            return value > HOPELESS_RATIO * self._best
        return value > HOPELESS_RATIO * max(self._best, self.pool.objective(best))

    def _place(self, value: float, unplaced: UnplacedCandidate) -> bool:
        begun_s = self.budget.now_s()
        kind = kind_of(unplaced)
        self._placed.add(unplaced)
        self._kinds.add(kind)
        self._waiting.pop(kind, None)
        is_best = self.pool.offer(self.pool.choose(self.evaluator.placed(unplaced)))
        self._place_s = self.budget.now_s() - begun_s
        if is_best:
            self._best = value
        return is_best

    def _is_held(self) -> bool:
        """Whether the best plan so far lives on as many nodes as is asked for."""
        best = self.pool.best
        return best is not None and best.holders >= self.request.min_holders


def kind_of(unplaced: UnplacedCandidate) -> Kind:
    """The template with the most GPUs on each set of GPU types; its stages, without its fill."""
    largest: dict[frozenset[str], tuple[int, Structure]] = {}
    for structure, replicas, _ in unplaced:
        types = frozenset(gpu_type for gpu_type, _ in structure)
        one = replicas * sum(tp for _, tp in structure), structure
        largest[types] = max(one, largest.get(types, one))
    return frozenset(structure for _, structure in largest.values())
