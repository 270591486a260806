"""One search as it goes: its clock, what it has found, and the way that it took.

Every engine works on the same course, so that seconds and plans are counted once.
Invariant: seconds that loading took are no part of the budget; what an engine thinks good counts
only after it was placed and priced by the one evaluator.
Source: design, section 2 ("An anytime planner in stages").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

from planner.request import PlanRequest, SearchStage
from planner.search.candidate import Judge, Recipe
from planner.search.findings import Findings

SETTLED = 16  # of the kernel's best plans, placed and priced at the end
HOPELESS = 1.02  # a plan that the kernel thinks so much worse than the best is not placed


class Course:
    """The seconds, the findings and the stages of one search.

    Attributes:
        request: what is asked.
        judge: places and prices plans.
        findings: all plans so far.
        now_s: reads the clock that the budget goes by.
        stages: of the search so far.
    """

    def __init__(self, request: PlanRequest, judge: Judge, clock: Callable[[], float]) -> None:
        """Begin now."""
        self.request, self.judge, self.now_s = request, judge, clock
        self.findings = Findings(request)
        self.stages: list[SearchStage] = []
        self._settled: set[Recipe] = set()
        self._settle_s = 0.0  # what placing and pricing a plan takes
        self._best = math.inf  # what the kernel thought of the best plan
        self._began_s = clock()
        self._uncounted_s = 0.0

    @property
    def passed_s(self) -> float:
        """Seconds of the search so far; those of compiling and loading do not count."""
        return self.now_s() - self._began_s - self._uncounted_s

    def leave_out(self, seconds: float) -> None:
        """Seconds that are no part of the budget."""
        self._uncounted_s += seconds

    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        budget_s = self.request.budget_s
        if budget_s is None:
            return math.inf
        return budget_s - self.passed_s

    def left_to_search_s(self) -> float:
        """The same without what placing and pricing the last plans will take."""
        left_s = self.left_s()
        if left_s == math.inf:
            return left_s
        return left_s - max(2 * self._settle_s, min(SETTLED * self._settle_s, 0.1 * left_s))

    def record(self, name: str, begun_s: float) -> None:
        """Write down a stage of the search, as one with an equal one that gained nothing more."""
        best = self.findings.best
        samples = best.price.throughput_samples_s if best else 0.0
        seconds = self.now_s() - begun_s
        if self.stages and self.stages[-1].throughput_samples_s == samples:
            for index, stage in enumerate(self.stages):
                if (stage.method, stage.throughput_samples_s) == (name, samples):  # once more
                    seconds += stage.seconds
                    del self.stages[index]
                    break
        self.stages.append(SearchStage(name, self.findings.evaluations, samples, seconds))

    def settle(self, recipes: Iterator[tuple[float, Recipe]], most: int) -> None:
        """Place and price the best plans of the kernel, as many as time allows."""
        for rank, (value, recipe) in enumerate(islice(recipes, most)):
            is_late = self.left_s() < (self._settle_s if rank else 0.0)
            if recipe in self._settled or (self.findings.best and is_late):
                continue
            if value > HOPELESS * self._best and self._is_held():
                continue
            self._settle(value, recipe)

    def settle_first(self, recipes: Iterator[tuple[float, Recipe]]) -> None:
        """Place and price plans until one is the best so far."""
        for value, recipe in recipes:
            if self._settle(value, recipe):
                return

    def _settle(self, value: float, recipe: Recipe) -> bool:
        begun_s = self.now_s()
        self._settled.add(recipe)
        is_best = self.findings.offer(self.judge.settle(recipe))
        self._settle_s = self.now_s() - begun_s
        if is_best:
            self._best = value
        return is_best

    def _is_held(self) -> bool:
        """Whether the best plan so far lives on as many nodes as is asked for."""
        best = self.findings.best
        return best is not None and best.holders >= self.request.min_holders
