"""The one interface of all baselines: a question and a budget in, ranked plans out.

Invariants: equal questions with equal budgets of evaluations get equal answers; plans are ranked
by the baseline's own formula alone; a larger budget prices first what a smaller one prices.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.baselines.layout import Layout
from planner.cluster.composition import Composition
from planner.model.workload import Workload
from planner.profiles.profile import Profile


@dataclass(frozen=True, slots=True)
class Question:
    """What a baseline is asked."""

    workload: Workload  # what is trained
    composition: Composition  # the GPUs that there are
    profile: Profile  # times, links and memory that its formula is fed with
    seed: int = 0  # of the baselines that draw at random


@dataclass(frozen=True, slots=True)
class Budget:
    """What ends a search before it is through: seconds, or plans that its own formula priced."""

    seconds: float = math.inf  # of the processor: other work takes nothing from a search
    evaluations: float = math.inf


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """A plan as the baseline says it; laid out on GPUs when somebody looks at it."""

    own_s: float  # iteration by the baseline's own formula
    laid_out: Callable[[], Layout]  # what it says, with its own placement


@dataclass(frozen=True, slots=True)
class Answer:
    """All plans that a baseline returns, best first by its own formula."""

    plans: tuple[RankedPlan, ...]
    plans_priced: int  # by its own formula
    seconds: float  # of the search, by the processor's clock
    finished: bool  # whether it went through its whole space


# A baseline is a function `plan(question, budget)`.
Baseline = Callable[[Question, Budget], Answer]


class Meter:
    """Counts what a search spends, and keeps what it found; every search is one thread.

    Attributes:
        budget: what ends the search.
        priced: plans so far.
        found: those that are kept, in the order in which they were found.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.process_time) -> None:
        """Start the clock."""
        self.budget, self.priced = budget, 0
        self.found: list[RankedPlan] = []
        self._clock, self._begun_s, self._stopped = clock, clock(), False

    @property
    def passed_s(self) -> float:
        """Seconds since the search began."""
        return self._clock() - self._begun_s

    def goes_on(self) -> bool:
        """Whether another plan may be priced."""
        if self.priced >= self.budget.evaluations or self.passed_s >= self.budget.seconds:
            self._stopped = True
        return not self._stopped

    def offer(self, own_s: float, laid_out: Callable[[], Layout]) -> None:
        """Keep a plan that was priced."""
        self.found.append(RankedPlan(own_s, laid_out))

    def answer(self) -> Answer:
        """What was found; equal seconds keep the order in which they were found."""
        return Answer(ranked(self.found), self.priced, self.passed_s, not self._stopped)


def ranked(plans: Iterable[RankedPlan]) -> tuple[RankedPlan, ...]:
    """Best first by their own formula."""
    return tuple(sorted(plans, key=lambda plan: plan.own_s))
