"""Drive the jitted search: starts, walks of annealing, and what they found as recipes.

The kernel is imported here and not before it is needed: loading numba takes most of a second.
Invariant: the same pricing, wishes, seed and calls give the same recipes.
Source: design, section 2 ("An anytime planner in stages").
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import count
from random import Random

import numpy as np

from planner.cost.batch_split import Lane
from planner.cost.money import LEAST
from planner.estimator.bag import new_bag
from planner.estimator.bench import new_bench
from planner.estimator.build_tables import Pricing
from planner.estimator.elites import Elites, load_elite, new_elites, offer
from planner.estimator.fill.filling import variant_of
from planner.estimator.fill.stage import ends_of
from planner.estimator.jit import compile_all
from planner.estimator.objective import Wishes
from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES
from planner.estimator.whole_plan import iteration_seconds
from planner.request import PlanRequest
from planner.search.annealing.local_search import anneal, start
from planner.search.annealing.long_pipelines import long_pipelines
from planner.search.candidate import Recipe, stages_first
from planner.search.column_generation.columns import ColumnSearch
from planner.search.fill import Filling
from planner.search.turns import COLD, HOT

WALK = 500  # steps between two looks at the clock: a few milliseconds
CHAINS = 4  # of a walk
ROUNDED = 1 + 1e-9  # sums of prices differ by their order
START_RATE = 50_000.0  # plans a second, until it is known
LOADING = 4  # looks at the clock of a column search that loads its functions


def load(pricing: Pricing) -> None:
    """Have every function of annealing and columns loaded, compiled before if it never was."""
    if not _LOADED:
        _LOADED.append(True)
        compile_all()
        wishes = Wishes(MAX_DEPTH, 2, 0, math.inf, math.inf)
        kernel = KernelSearch(pricing, wishes, 0)
        kernel.start()
        kernel.walk(lambda: math.inf, kernel.evaluations + 2, templates=2)
        asked = count()
        ColumnSearch(pricing, wishes, 0).run(kernel.elites, lambda: next(asked) > LOADING, 1)
        for _, _recipe in kernel.recipes():
            break


_LOADED: list[bool] = []  # of this process: machine code is never unloaded


def wishes_of(request: PlanRequest) -> Wishes:
    """What a request allows, and what it wants to be small."""
    least = request.min_throughput
    return Wishes(
        min(request.deepest, MAX_DEPTH),
        min(request.max_templates, MAX_TEMPLATES),
        int(request.objective == "cost"),
        request.workload.global_batch / least if least else math.inf,
        math.inf if request.max_price is None else request.max_price * ROUNDED,
        LEAST,
    )


class KernelSearch:
    """Best plans by the kernel's price, and the walks that find them."""

    def __init__(self, pricing: Pricing, wishes: Wishes, seed: int, evaluations: int = 0) -> None:
        """Prepare; so many plans were priced before."""
        self.pricing = pricing
        self.wishes = wishes
        self.elites = new_elites()
        self.evaluations = evaluations
        self._random = Random(seed)
        self._state = np.array([1 + seed % 2147483646], np.int64)
        tables = pricing.tables
        self._now, self._trial = new_bag(), new_bag()
        self._bench = new_bench(tables)

    @property
    def found(self) -> int:
        """How many different plans are held."""
        return int(self.elites.number[0])

    @property
    def best(self) -> float:
        """The smallest objective so far."""
        return float(self.elites.value[: self.found].min()) if self.found else math.inf

    def take(self, others: Elites, evaluations: int) -> None:
        """Take over the best plans of somebody else, who priced so many."""
        for row in range(int(others.number[0])):
            offer(others, row, self.elites)
        self.evaluations += evaluations

    def start(self) -> None:
        """Every template of one kind of stage, and plans of pipelines on one kind of node each.

        Where none of them fits, pipelines that span the kinds.
        """
        tables = self.pricing.tables
        priced = start(tables, self.wishes, self._now, self._bench, self.elites)
        self.evaluations += int(priced)
        if not self.found:
            for options in long_pipelines(tables, self.wishes.deepest):
                self._price_alone(options)

    def _price_alone(self, options: tuple[int, ...]) -> None:
        """One pipeline of these stages, and nothing else."""
        now = self._now
        now.number[0] = now.replicas[0] = 1
        now.depth[0] = len(options)
        now.options[0, : len(options)] = options
        self._anneal(self.wishes, self.elites, 0, HOT, COLD)
        self.evaluations += 1

    def _anneal(self, wishes: Wishes, pool: Elites, steps: int, hot: float, cold: float) -> None:
        """Walk on from the plan at hand, which joins the pool as the best of the way do."""
        tables, now, trial = self.pricing.tables, self._now, self._trial
        anneal(tables, wishes, now, trial, self._bench, pool, self._state, steps, hot, cold)

    def walk(
        self,
        left_s: Callable[[], float],
        most: float,
        *,
        templates: int,
        hot: float = HOT,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Anneal until no time is left or so many plans were priced.

        A few chains, the first from the best plan, each cooling down over its share; a chain is
        walked in parts, so that the time is looked at every few milliseconds.

        Args:
            left_s: seconds that are left; asked before every part.
            most: evaluations.
            templates: most templates of a plan.
            hot: first temperature of each chain.
            clock: that `left_s` goes by.
        """
        wishes = self.wishes._replace(max_templates=min(templates, self.wishes.max_templates))
        pool = new_elites()
        for row in range(self.found):
            if self.elites.templates[row] <= wishes.max_templates:
                offer(self.elites, row, pool)
        whole_s, begun_s = left_s(), clock()
        rate = START_RATE  # plans a second
        chains = 0
        while pool.number[0] and self.evaluations < most and left_s() > 0:
            order = np.argsort(pool.value[: pool.number[0]], kind="stable")
            pick = 0 if chains % 2 == 0 else self._random.randrange(len(order))
            load_elite(pool, int(order[pick]), self._now)
            share = min(most - self.evaluations, rate * left_s()) / max(1, CHAINS - chains)
            parts = max(1, round(share / WALK))
            before = self.evaluations
            for part in range(parts):
                steps = int(min(WALK, most - self.evaluations))
                if steps < 1 or left_s() <= 0:
                    break
                first = hot * (COLD / hot) ** (part / parts)
                last = hot * (COLD / hot) ** ((part + 1) / parts)
                self._anneal(wishes, pool, steps, first, last)
                self.evaluations += steps
            chains += 1
            if whole_s < math.inf:
                passed_s = clock() - begun_s
                rate = (self.evaluations - before) / max(passed_s, 1e-6)
                begun_s = clock()
        for row in range(int(pool.number[0])):
            offer(pool, row, self.elites)

    def recipes(self) -> Iterator[tuple[float, Recipe]]:
        """(objective, recipe) of the best plans, best first."""
        for row in np.argsort(self.elites.value[: self.found], kind="stable"):
            yield float(self.elites.value[row]), self._recipe(int(row))

    def _recipe(self, row: int) -> Recipe:
        e, names = self.elites, self.pricing
        tables = names.tables
        load_elite(e, row, self._trial)
        work = self._bench.price
        iteration_seconds(tables, self._trial, work, math.inf)
        by_stage = bool(work.is_by_stage[0])
        rows = []
        for k in range(int(e.templates[row])):
            depth = int(e.depth[row, k])
            replicas, most = int(e.replicas[row, k]), int(e.most[row, k])
            options = [int(o) for o in e.options[row, k, :depth]]
            blocks = tuple(int(n) for n in e.blocks[row, k, :depth])
            size = int(e.size[row, k])
            ways = []
            start = 0
            for s, option in enumerate(options):
                stop = start + blocks[s]
                dense = min(stop, tables.dense) - min(start, tables.dense)
                variant = variant_of(
                    tables,
                    option,
                    size,
                    min(most, depth - s),
                    ends_of(s, depth),
                    replicas,
                    dense,
                    blocks[s] - dense,
                )
                chosen = names.variants[option][variant]
                tiling = (chosen.ep, chosen.etp) if blocks[s] > dense else (1, 0)
                ways.append((chosen.recompute, *tiling))
                start = stop
            lane = Lane(
                int(tables.sizes[size]), float(e.tau_s[row, k]), float(e.sum_s[row, k]), most
            )
            structure = tuple(names.options[option] for option in options)
            classes = tuple(int(tables.option_type[option]) for option in options)
            if names.by_type:
                classes = ()
            filling = Filling(blocks, lane, tuple(ways), classes, by_stage)
            rows.append((structure, replicas, filling))
        return tuple(sorted(rows, key=stages_first))
