"""A portfolio of searchers: what they find is placed, priced and joins the pool.

Where seconds end the search there is a thread for each core, with searchers from a seed of its own;
plans come together at the end.  The first thread alone places plans while it searches.
Invariant: where plans end the search, the same state and pricings find the same plans.  A search
with more of them first does all that a shorter one does, so it is never worse.
Source: portfolios of randomised searches.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, zip_longest

from planner.cores import usable_cores
from planner.estimator.build_tables import Pricing
from planner.request import PlanRequest
from planner.search.budget import Budget
from planner.search.searcher import Allowance, Engine, Searcher, limits_of
from planner.search.state import PLACED, SearchState, UnplacedCandidates

PLACED_TILED = 3  # plans that are placed after each turn, where experts are spread
PLACE_GROWTH = 1.25  # of the plans that are priced, between two times at which the best are placed
FEW_S = 0.5  # a search of fewer seconds is ended by them, whatever its limit of plans
USUAL_THREADS = 4
SEEDS = 1_000_003  # between the seeds of two threads

Fits = Callable[[int], bool]  # whether so many plans more may be priced
Propose = Callable[[Searcher, Fits], None]


def threads_of(request: PlanRequest, budget: Budget) -> int:
    """How many threads a request gets: one where its plan is to be the same every time."""
    if budget.counts_plans:
        return 1
    return request.threads or min(USUAL_THREADS, usable_cores())


class Portfolio:
    """Workers on one or several threads."""

    def __init__(
        self,
        state: SearchState,
        pricings: Sequence[Pricing],
        share_s: float = 1.0,
        most_plans: float = math.inf,
    ) -> None:
        """Prepare a searcher of each thread for each pricing; the state takes their plans.

        They may price so many plans in a share of the seconds that are left.
        """
        budget = state.budget
        self._state, self._budget = state, budget
        self._end_s = budget.now_s() + share_s * state.left_to_search_s
        self._before = state.pool.evaluations
        self._most = min(budget.most_plans, self._before + most_plans)
        limits, seed = limits_of(state.request), state.request.seed
        self._threads = [
            [Searcher(pricing, limits, seed + SEEDS * number) for pricing in pricings]
            for number in range(threads_of(state.request, budget))
        ]
        self._first = self._threads[0]
        method = state.request.method
        self._engines: tuple[Engine, ...] = ("local search", "columns")
        if method == "search":
            self._engines = ("local search",)
        # where experts sit decides what their exchange takes, which a placement knows best
        tiled = any(pricing.tables.spreads_experts for pricing in pricings)
        self._placed = PLACED_TILED if tiled else 1
        # a coarse pricing is off by more than plans differ: the best of each pricing are placed
        self._is_coarse = any(pricing.by_type or pricing.any_speed for pricing in pricings)
        self._pricings = len(pricings) if self._is_coarse else 1
        state.estimates_are_close = not self._is_coarse
        self._is_spent = False
        self._best = math.inf  # of the first thread, when a plan was placed last
        self._next_place = 1.0  # plans that are priced when the best are placed next

    def run(self, propose: Propose | None = None, rescue: Callable[[], None] | None = None) -> None:
        """Search until the budget is spent.

        `propose` adds plans of the policy to a searcher; `rescue` looks for a first plan where the
        plans to start from have none.
        """
        state = self._state
        begun_s = self._budget.now_s()
        for searcher in self._first:
            searcher.start(lambda plans: self._fits(plans) or not self._is_found())
        # placing a plan may take most of few seconds: the policy's are better ones to begin with
        is_short = self._budget.left_s < FEW_S or not self._budget.counts_plans
        policy_first = propose is not None and is_short
        if not policy_first:
            self._place()
            state.record("uniform", begun_s)
        if rescue is not None and not policy_first and not self._is_found():
            self._rescue(rescue)
        if propose is not None:
            propose(self._first[-1], self._fits)
            self._count()
        if policy_first:
            begun_s = self._budget.now_s()
            self._place()
            state.record("uniform", begun_s)
        if not self._budget.counts_plans:  # before much of one kind is found
            state.note(self._unplaced_candidates([self._first]))
        others = self._threads[1:]
        with ThreadPoolExecutor(max(1, len(others)), "search") as pool:
            running = [pool.submit(self._run_beside, searchers) for searchers in others]
            self._run_first()
            begun_s = self._budget.now_s()
            for one in running:
                one.result()
        self._count()
        if not self._budget.counts_plans:
            most = 2 * PLACED * self._pricings
            found = list(islice(self._unplaced_candidates(self._threads), most))
            state.note(found)
            state.place(found, self._pricings)
            state.place_other_kinds()
            state.place(found, self._pricings * PLACED)
        if others:
            state.record("other threads", begun_s)

    def _rescue(self, rescue: Callable[[], None]) -> None:
        """What it prices counts in the budget, and not in the share of the searchers."""
        pool = self._state.pool
        begun = pool.evaluations
        rescue()
        spent = pool.evaluations - begun
        self._before += spent
        self._most = min(self._budget.most_plans, self._most + spent)

    def _run_first(self) -> None:
        begun_s = self._budget.now_s()
        for engine in self._turns(self._first, self._fits):
            self._place()
            self._state.record(engine, begun_s)
            begun_s = self._budget.now_s()

    def _run_beside(self, searchers: list[Searcher]) -> None:
        for searcher in searchers:
            searcher.start()
        for _ in self._turns(
            searchers, lambda _: self._left_s() > 0 and not self._budget.interrupted()
        ):
            pass

    def _turns(self, searchers: list[Searcher], fits: Fits) -> Iterator[Engine]:
        """A turn of each searcher after the other, until all have ended."""
        budget = self._budget

        def allowance() -> Allowance:
            now_s = budget.now_s()
            return Allowance(end_s=now_s + self._left_s(), now_s=budget.now_s, fits=fits)

        running = [
            searcher.improve(allowance, self._engines, counts_plans=budget.counts_plans)
            for searcher in searchers
        ]
        while running:
            for one in tuple(running):
                engine = next(one, None)
                if engine is None:
                    running.remove(one)
                else:
                    yield engine

    def _left_s(self) -> float:
        return min(self._state.left_to_search_s, self._end_s - self._budget.now_s())

    def _is_found(self) -> bool:
        return self._state.is_found or self._budget.interrupted()

    def _fits(self, plans: int) -> bool:
        """Whether the first thread may price so many plans more; once it may not, it never may.

        Where plans end the search, plans are placed at counts that do not depend on its end.
        """
        if self._is_spent and self._is_found():
            return False
        self._count()
        evaluations, counts_plans = self._state.pool.evaluations, self._budget.counts_plans
        best = min(searcher.best for searcher in self._first)
        if counts_plans and evaluations >= self._next_place and best < math.inf:
            self._best, self._next_place = best, PLACE_GROWTH * evaluations
            self._state.place(self._unplaced_candidates([self._first]), self._pricings * PLACED)
        elif counts_plans and best < self._best:
            self._best = best
            self._state.place(self._unplaced_candidates([self._first]), self._pricings)
        self._is_spent |= (
            evaluations + plans > self._most or self._left_s() <= 0 or self._budget.interrupted()
        )
        return not self._is_spent

    def _place(self) -> None:
        """Place the best plans of the first thread, all that count where time does not."""
        if self._budget.counts_plans and self._is_spent and self._is_found():
            return  # a search with more plans would not place these now
        self._count()
        most = PLACED if self._budget.counts_plans else self._placed
        self._state.place(self._unplaced_candidates([self._first]), self._pricings * most)

    def _unplaced_candidates(self, threads: list[list[Searcher]]) -> UnplacedCandidates:
        """(objective, unplaced) of all their plans, best first, of coarse pricings in turn."""
        if not self._is_coarse:
            return _best_first(searcher for searchers in threads for searcher in searchers)
        by_pricing = [_best_first(searchers) for searchers in zip(*threads, strict=True)]
        rounds = zip_longest(*by_pricing)
        return (pair for one_of_each in rounds for pair in one_of_each if pair is not None)

    def _count(self) -> None:
        """How many plans all have priced; a thread that runs may be a few ahead."""
        priced = sum(searcher.evaluations for searchers in self._threads for searcher in searchers)
        self._state.pool.evaluations = self._before + priced


def _best_first(searchers: Iterable[Searcher]) -> UnplacedCandidates:
    found = (searcher.unplaced_candidates() for searcher in searchers)
    return heapq.merge(*found, key=lambda pair: pair[0])
