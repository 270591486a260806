"""One searcher of the search: local search and column generation in turn, from one seed.

Both engines improve one pool of plans that the estimator prices before their placement.  A turn
grows with the plans so far, whatever is left of the budget: a search with more plans continues one
with fewer.  numba takes most of a second to import, so this module is imported where it is needed.
Invariant: the same pricing, limits, seed and calls price the same plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, cycle
from random import Random
from typing import Literal, NamedTuple

import numpy as np

from planner.cost.money import LEAST, highest_price
from planner.estimator.build_tables import Pricing
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES, Floats
from planner.estimator.top_k import TopK, load_top, new_top_k, offer
from planner.estimator.workspace import new_workspace
from planner.request import PlanRequest
from planner.search.annealing.affordable_nodes import affordable_rooms
from planner.search.annealing.local_search import anneal
from planner.search.annealing.long_pipelines import long_pipelines
from planner.search.annealing.uniform_plans import join_fastest, start, unknown_fastest
from planner.search.candidate import UnplacedCandidate
from planner.search.column_generation.columns import ColumnSearch
from planner.search.unplaced_candidates import unplaced_candidate_of

Engine = Literal["local search", "columns"]
ENGINES: tuple[Engine, ...] = ("local search", "columns")

PARTS = (16, 250)  # plans that local search prices between two looks at the budget, least and most
PART_SHARE = 0.1  # of the plans so far
COLUMNS_PART = 150  # plans that column generation prices between two looks, at most
LEAST_TURN_S, LEAST_TURN_PLANS = 0.02, 500
GROWTH = 0.25  # a turn is so large a share of all that the searcher has spent
HOT = 0.03  # first temperature of a walk that looks elsewhere, a share of the objective
COOL = 0.004  # of one that improves a good plan
COLD = 0.0005  # last one of all
WALKS = ((1, HOT), (0, HOT), (0, COOL), (0, COOL))  # most templates (0: all), first temperature
CHAINS = 4  # of a walk, each as long as the others
START_RATE = 50_000.0  # plans a second, until it is known


def _always(_: int) -> bool:
    return True


class Allowance(NamedTuple):
    """Allowance of a searcher, or of one turn of it; looked at every few milliseconds.

    Attributes:
        end: plans that the searcher may have priced when it ends.
        end_s: when it ends by the clock.
        now_s: reads the clock.
        fits: whether so many plans more may be priced, by whoever counts them.
    """

    end: float = math.inf
    end_s: float = math.inf
    now_s: Callable[[], float] = float
    fits: Callable[[int], bool] = _always


def limits_of(request: PlanRequest) -> SearchLimits:
    """Limits and objective of a request."""
    least = request.min_throughput
    return SearchLimits(
        min(request.deepest, MAX_DEPTH),
        min(request.max_templates, MAX_TEMPLATES),
        int(request.objective == "cost"),
        request.workload.global_batch / least if least else math.inf,
        highest_price(request.max_price),
        LEAST,
    )


class Searcher:
    """A pool of plans and the engines that improve it.

    Attributes:
        pricing: prices plans before their placement.
        limits: objective and limits.
        top_k: the best plans so far.
        evaluations: plans that this searcher has priced.
    """

    def __init__(self, pricing: Pricing, limits: SearchLimits, seed: int) -> None:
        """Begin without a plan."""
        self.pricing, self.limits = pricing, limits
        self.top_k = new_top_k()
        self.evaluations = 0
        self._random = Random(seed)
        self._work = new_workspace(pricing.tables, seed)
        self._columns = ColumnSearch(pricing, limits)
        self._walked: TopK | None = None  # the best plans of the walk that is under way

    @property
    def found(self) -> int:
        """How many different plans are in the pool."""
        return int(self.top_k.number[0])

    @property
    def best(self) -> float:
        """The smallest objective so far."""
        return float(self.top_k.value[: self.found].min()) if self.found else math.inf

    def take(self, others: TopK, evaluations: int) -> None:
        """Take over the best plans of somebody else, who priced so many."""
        for row in range(int(others.number[0])):
            offer(others, row, self.top_k)
        self.evaluations += evaluations

    def unplaced_candidates(self) -> Iterator[tuple[float, UnplacedCandidate]]:
        """(objective, unplaced) of the best plans, best first."""
        found = new_top_k()
        pools = [self.top_k] if self._walked is None else [self.top_k, self._walked]
        for pool in pools:
            for row in range(int(pool.number[0])):
                offer(pool, row, found)
        for row in np.argsort(found.value[: found.number[0]], kind="stable"):
            load_top(found, int(row), self._work.trial)
            unplaced = unplaced_candidate_of(self.pricing, self._work.trial, self._work)
            yield float(found.value[row]), unplaced

    # ------------------------------------------------------------------ plans to start from

    def start(self, fits: Callable[[int], bool] = _always) -> None:
        """Plans whose stages are all alike, and pipelines of several node classes side by side.

        Where none of them fits in memory, pipelines that span the classes; and where that many
        pipelines do not fit, fewer.  Whether so many plans more fit is asked before each part.
        """
        self._start(fits)
        if not self.found and self.pricing.tables.min_replicas > 1:
            tables = self.pricing.tables._replace(min_replicas=1)
            self.pricing = replace(self.pricing, tables=tables)
            self._start(fits)

    def _start(self, fits: Callable[[int], bool]) -> None:
        tables, before = self.pricing.tables, self.evaluations

        def goes_on(priced: int, more: int) -> bool:
            self.evaluations = before + priced
            return fits(more)

        fastest = unknown_fastest(tables)
        priced = start(tables, self.limits, self._work, self.top_k, goes_on, fastest)
        self.evaluations = before + priced
        if self.limits.most_price < math.inf:
            self._start_affordable(fastest, fits)
        if not self.found:
            for options in long_pipelines(tables, self.limits.deepest):
                self._price_alone(options)

    def _start_affordable(self, fastest: Floats, fits: Callable[[int], bool]) -> None:
        """Plans on sets of nodes that may be paid: side by side, and pipelines that span them."""
        tables = self.pricing.tables
        for room in affordable_rooms(tables, self.limits.most_price):
            paid = tables._replace(room=room)
            pipelines = list(long_pipelines(paid, self.limits.deepest))
            if not fits(len(fastest) + len(pipelines)):
                return
            self.evaluations += join_fastest(
                paid, self.limits, self._work, self.top_k, fastest.copy()
            )
            for options in pipelines:
                self._price_alone(options)

    def _price_alone(self, options: tuple[int, ...]) -> None:
        """One pipeline of these stages, and nothing else."""
        now = self._work.now
        now.number[0] = now.replicas[0] = 1
        now.depth[0] = len(options)
        now.options[0, : len(options)] = options
        anneal(self.pricing.tables, self.limits, self._work, self.top_k, 0, HOT, COLD)
        self.evaluations += 1

    # ------------------------------------------------------------------ turns

    def improve(
        self,
        allowance: Callable[[], Allowance],
        engines: tuple[Engine, ...],
        *,
        counts_plans: bool,
    ) -> Iterator[Engine]:
        """Turns of the engines until nothing is left of the allowance, which is asked before each.

        Gives the engine after its turn, whose length counts in plans or in seconds.
        """
        walks, idle = cycle(WALKS), 0
        begun_s, begun = allowance().now_s(), self.evaluations
        for engine in cycle(engines):
            left, before = allowance(), self.evaluations
            if counts_plans:
                plans = max(LEAST_TURN_PLANS, int(GROWTH * (before - begun)))
                turn = left._replace(end=before + plans)
            else:
                now_s = left.now_s()
                seconds = max(LEAST_TURN_S, GROWTH * (now_s - begun_s))
                turn = left._replace(end_s=min(left.end_s, now_s + seconds))
            if engine == "local search":
                templates, hot = next(walks)
                self.walk(turn, templates=templates or MAX_TEMPLATES, hot=hot)
            else:
                self._generate(turn)
            if not self.found or not self._goes_on(left, self._part):
                return
            idle = idle + 1 if self.evaluations == before else 0
            if counts_plans and idle == len(ENGINES) * len(WALKS):
                return  # nothing is left to price, whoever has the turn
            yield engine

    def _goes_on(self, turn: Allowance, plans: int) -> bool:
        """Whether so many plans more may be priced now; those beyond the end of a turn may."""
        return self.evaluations < turn.end and turn.now_s() < turn.end_s and turn.fits(plans)

    @property
    def _part(self) -> int:
        """Plans that local search prices before it looks at the budget again."""
        least, most = PARTS
        return min(most, max(least, int(PART_SHARE * self.evaluations)))

    def walk(self, turn: Allowance, *, templates: int, hot: float = HOT) -> None:
        """Anneal: a few chains, the first from the best plan, each cooling down over its share."""
        limits = self.limits._replace(max_templates=min(templates, self.limits.max_templates))
        pool = new_top_k()
        for row in range(self.found):
            if self.top_k.plans.number[row, 0] <= limits.max_templates:
                offer(self.top_k, row, pool)
        begun_s, rate, self._walked = turn.now_s(), START_RATE, pool
        for chain in count():
            if not pool.number[0] or not self._goes_on(turn, self._part):
                break
            order = np.argsort(pool.value[: pool.number[0]], kind="stable")
            pick = 0 if chain % 2 == 0 else self._random.randrange(len(order))
            load_top(pool, int(order[pick]), self._work.now)
            left = min(turn.end - self.evaluations, rate * (turn.end_s - turn.now_s()))
            share = left / max(1, CHAINS - chain)
            before = self.evaluations
            while (done := self.evaluations - before) < share:
                steps = int(min(self._part, turn.end - self.evaluations))
                if steps < 1 or not self._goes_on(turn, steps):
                    break
                cooling = COLD / hot
                first, last = (min(1.0, plans / share) for plans in (done, done + steps))
                anneal(
                    self.pricing.tables,
                    limits,
                    self._work,
                    pool,
                    steps,
                    hot * cooling**first,
                    hot * cooling**last,
                )
                self.evaluations += steps
                self._take_best(pool)
            if turn.end_s < math.inf:
                passed_s, begun_s = turn.now_s() - begun_s, turn.now_s()
                rate = (self.evaluations - before) / max(passed_s, 1e-6)
        self.take(pool, 0)
        self._walked = None

    def _take_best(self, pool: TopK) -> None:
        best = int(np.argmin(pool.value))
        if pool.value[best] < self.best:
            offer(pool, best, self.top_k)

    def _generate(self, turn: Allowance) -> None:
        """Templates built from prices, mixed to whole plans."""
        others = self.evaluations - self._columns.master.priced

        def is_over() -> bool:
            self.evaluations = others + self._columns.master.priced
            return not self._goes_on(turn, COLUMNS_PART)

        self._columns.run(self.top_k, is_over)
        self.evaluations = others + self._columns.master.priced
