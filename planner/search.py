"""Find the best plan for a composition, and say how it was found.

An anytime search in stages.  On a few GPUs every plan is placed and priced exactly; on more, the
jitted kernel anneals over whole plans, column generation builds templates from prices, and what
they found is placed and priced by the one evaluator.  Then, with a current plan, take among plans
within half a per cent the one that moves fewest bytes.
Invariants: the same request and seed give the same plan unless seconds cut the search short; the
answer is never slower than the current plan while that still fits (unless it puts every piece on
more of the nodes that were asked for).
Source: design, section 2 ("An anytime planner in stages").
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from planner.brute_force import brute_force
from planner.candidate import Candidate, Judge, Recipe
from planner.errors import Infeasible
from planner.exact_search import ExactSearch
from planner.findings import NEAR, Findings
from planner.infeasible import why_infeasible
from planner.movement import bytes_to_move
from planner.pricing_tables import Pricing, pricing_of
from planner.profile import Profile
from planner.request import PlanAnswer, PlanRequest, SearchStage, idle_gpus
from planner.simulation import simulated_seconds
from planner.small_search import SmallSearch

if TYPE_CHECKING:
    from planner.columns import ColumnSearch
    from planner.kernel_search import KernelSearch

__all__ = ["PlanAnswer", "PlanRequest", "search"]

SMALL_GPUS = 8  # so few are searched exactly alone where the budget is small
MEDIUM_GPUS = 16  # so few are searched both ways
EXACT_EVALUATIONS = 3000  # of the exact search before the kernel: half a second
ENUMERATE_SHARE = 0.2  # of the seconds
EXACT_SHARE = 0.25  # of the seconds, before the kernel
FINALISTS = 32  # plans that are placed again to move fewer bytes
SMALL_SHARE = 0.3  # of the seconds, for the kernel where the exact search goes on after it
SETTLED = 6  # of the kernel's best plans, placed and priced after each of its stages
LOAD_S = 0.02  # what loading takes less than if it was done before
INSIDE_SHARE = 0.2  # of the seconds, for plans whose gradients do not leave nodes
WALK, WALK_STEPS = 1.0, 20_000  # a walk after columns: its seconds as a share of theirs, and plans


def search(request: PlanRequest, profile: Profile) -> PlanAnswer:
    """The best plan found within the budget.

    Raises:
        Infeasible: no plan fits; the message names the term that binds, and by how much.
        UnprofiledConfiguration: the profile speaks of another workload.
    """
    if request.method == "brute-force":
        return brute_force(request, profile)
    return _Search(request, profile).run()


class _Search:
    """One search: its budget, what it has found, and how."""

    def __init__(self, request: PlanRequest, profile: Profile) -> None:
        profile.require(request.workload)
        self._began_s = self._started_s = time.perf_counter()
        self._request = request
        self._profile = profile
        known = tuple(n for n in request.composition.nodes if n.gpu_type in profile.types)
        self._composition = replace(request.composition, nodes=known)
        self._judge = Judge(request.workload, self._composition, profile, request.min_holders)
        self._findings = Findings(request)
        self._stages: list[SearchStage] = []
        self._settled: set[object] = set()
        self._exact: ExactSearch | None = None
        self._kept_s = 0.0  # of the seconds, for stages after the kernel
        self._settle_s = 0.0  # what placing and pricing a plan takes

    def run(self) -> PlanAnswer:
        """All stages of the search, one after the other."""
        current = None
        if self._request.current is not None:
            current = self._judge.as_it_is(self._request.current)
            self._findings.offer(current)
        pricing = self._pricing()
        self._enumerate()
        if pricing is not None and not self._is_enough(pricing):
            self._load_kernel(pricing)
            self._search_exactly(2 * EXACT_EVALUATIONS, EXACT_SHARE)
            if self._is_few():
                inside = self._pricing(stays_inside=True)
                if inside is not None:
                    self._keep_s(1 - INSIDE_SHARE)
                    self._search_with_kernel(inside, INSIDE_SHARE)
                self._keep_s(1 - SMALL_SHARE)
            self._search_with_kernel(pricing, SMALL_SHARE if self._is_few() else 0.9)
            self._search_exactly(self._request.most_evaluations, 1.0)
        best = self._findings.best or self._findings.nearest
        if best is None:
            raise Infeasible(why_infeasible(self._request, self._profile))
        chosen = best
        if self._request.current is not None and self._findings.best is not None:
            chosen = self._fewest_bytes(current)
        return self._answer(chosen)

    # ------------------------------------------------------------------ which way, and how long

    def _pricing(self, *, stays_inside: bool = False) -> Pricing | None:
        if not self._composition.nodes:
            return None
        least = min(self._request.min_holders, len(self._composition.nodes))
        return pricing_of(
            self._request.workload,
            self._composition,
            self._profile,
            min_replicas=least,
            allow_ep=self._request.allow_ep,
            stays_inside=stays_inside,
        )

    def _load_kernel(self, pricing: Pricing) -> None:
        """Load what numba has compiled, once a process; it is no part of the budget."""
        begun_s = time.perf_counter()
        from planner.kernel_search import load

        load(pricing)
        seconds = time.perf_counter() - begun_s
        if seconds > LOAD_S:
            self._started_s += seconds
            self._record("load kernel", begun_s)

    def _is_few(self) -> bool:
        """Whether fill and placement are searched together, and every plan is priced exactly."""
        return 0 < self._composition.gpus <= MEDIUM_GPUS

    def _is_enough(self, pricing: Pricing) -> bool:
        """Whether that is all: few GPUs, no variants, and a budget of few plans."""
        is_plain = int(pricing.tables.variants.max()) == 1
        is_small = self._composition.gpus <= SMALL_GPUS
        is_short = self._request.most_evaluations <= EXACT_EVALUATIONS
        return is_small and is_plain and is_short and self._request.budget_s is None

    def _left_s(self) -> float:
        budget_s = self._request.budget_s
        if budget_s is None:
            return math.inf
        return self._started_s + budget_s - time.perf_counter()

    def _left_to_search_s(self) -> float:
        """Without what placing and pricing the last plans will take."""
        left_s = self._left_s() - self._kept_s
        if left_s == math.inf:
            return left_s
        return left_s - max(2 * self._settle_s, min(SETTLED * self._settle_s, 0.1 * left_s))

    def _keep_s(self, share: float) -> None:
        """Let the kernel leave that share of the time to other stages."""
        self._kept_s = 0.0 if self._request.budget_s is None else share * self._left_s()

    def _record(self, name: str, started_s: float) -> None:
        best = self._findings.best
        samples = best.price.throughput_samples_s if best else 0.0
        seconds = time.perf_counter() - started_s
        if self._stages and self._stages[-1].throughput_samples_s == samples:
            for index, stage in enumerate(self._stages):
                if (stage.method, stage.throughput_samples_s) == (name, samples):  # once more
                    seconds += stage.seconds
                    del self._stages[index]
                    break
        self._stages.append(SearchStage(name, self._findings.evaluations, samples, seconds))

    # ------------------------------------------------------------------ stages of the search

    def _enumerate(self) -> None:
        """On a few GPUs: every template of small depth, and bags of the best of them."""
        if not self._is_few() or self._request.workload.recompute == "auto":
            return
        end_s = time.perf_counter() + ENUMERATE_SHARE * self._left_s()
        budget = min(self._request.most_evaluations, EXACT_EVALUATIONS)
        small = SmallSearch(
            self._judge,
            self._findings,
            lambda: self._findings.best is not None and time.perf_counter() >= end_s,
            budget,
        )
        for name, stage in small.stages():
            started_s = time.perf_counter()
            stage()
            self._record(name, started_s)

    def _search_exactly(self, evaluations: int, share: float) -> None:
        """On a few GPUs: fill and placement together, every plan priced exactly."""
        if not self._is_few():
            return
        started_s = time.perf_counter()
        if self._exact is None:
            self._exact = ExactSearch(self._judge, self._findings)
        end_s = time.perf_counter() + share * self._left_s()
        budget = min(self._request.most_evaluations, evaluations)
        self._exact.run(lambda: time.perf_counter() >= end_s, budget)
        self._record("exact search", started_s)

    def _search_with_kernel(self, pricing: Pricing, whole: float = 0.9) -> None:
        from planner.columns import ColumnSearch
        from planner.kernel.local_search import HOT
        from planner.kernel.moves import Wishes
        from planner.kernel.tables import MAX_DEPTH, MAX_TEMPLATES
        from planner.kernel_search import COOL, KernelSearch

        request, findings = self._request, self._findings
        started_s = time.perf_counter()
        wishes = Wishes(
            min(request.deepest, MAX_DEPTH),
            min(request.max_templates, MAX_TEMPLATES),
            int(request.objective == "cost"),
            self._most_s(),
            math.inf if request.max_price is None else request.max_price,
        )
        kernel = KernelSearch(pricing, wishes, request.seed)
        first = findings.evaluations
        left = max(0, request.most_evaluations - first)

        def settle(most: int) -> None:
            findings.evaluations = first + kernel.evaluations
            self._settle(kernel.recipes(), most)

        def walk(name: str, share: float, until: float, templates: int, hot: float) -> None:
            begun_s = time.perf_counter()
            end_s = begun_s + share * self._left_to_search_s()
            kernel.walk(
                lambda: end_s - time.perf_counter(), int(until * left), templates=templates, hot=hot
            )
            settle(1)
            self._record(name, begun_s)

        kernel.start()
        if not kernel.found and pricing.tables.min_replicas > 1:
            # no plan with so many pipelines fits: then one with fewer
            pricing = replace(pricing, tables=pricing.tables._replace(min_replicas=1))
            kernel = KernelSearch(pricing, wishes, request.seed)
            kernel.start()
        settle(1)
        self._record("uniform", started_s)
        if request.method != "columns":
            walk("anneal one template", 0.05 * whole, 0.05 * whole, 1, HOT)
            walk("anneal", 0.08 * whole, 0.15 * whole, request.max_templates, HOT)
        if request.method != "search":
            columns = ColumnSearch(kernel.pricing, wishes, request.seed)
            while kernel.evaluations < int(whole * left) and self._left_to_search_s() > 0:
                begun_s, before = time.perf_counter(), kernel.evaluations
                self._generate_columns(kernel, columns, whole, int(whole * left))
                took_s = time.perf_counter() - begun_s
                share = min(1.0, WALK * took_s / max(1e-9, self._left_to_search_s()))
                most = min(whole, (kernel.evaluations - first + WALK_STEPS) / max(1, left))
                walk("local search", share, most, request.max_templates, COOL)
                if kernel.evaluations == before:  # nothing is left to price
                    break
        walk("local search", whole, whole, request.max_templates, COOL)
        settle(SETTLED)

    def _generate_columns(
        self, kernel: KernelSearch, columns: ColumnSearch, share: float, most: int
    ) -> None:
        """Templates built from prices, mixed to whole plans."""
        begun_s = time.perf_counter()
        end_s = begun_s + share * self._left_to_search_s()
        first = kernel.evaluations

        def over() -> bool:
            return time.perf_counter() >= end_s or first + columns.priced >= most

        if most > first:
            columns.run(kernel.elites, over, 1)
        kernel.evaluations = first + columns.priced
        self._findings.evaluations += columns.priced
        self._settle(kernel.recipes(), 1)
        self._record("columns", begun_s)

    def _most_s(self) -> float:
        least = self._request.min_throughput
        return math.inf if not least else self._request.workload.global_batch / least

    def _settle(self, recipes: Iterator[tuple[float, Recipe]], most: int = SETTLED) -> None:
        """Place and price the kernel's best plans."""
        for rank, (_, recipe) in enumerate(islice(recipes, most)):
            begun_s = time.perf_counter()
            is_late = self._left_s() < (self._settle_s if rank else 0.0)
            if recipe in self._settled or (self._findings.best and is_late):
                continue
            self._settled.add(recipe)
            self._findings.offer(self._judge.settle(recipe))
            self._settle_s = time.perf_counter() - begun_s

    # ------------------------------------------------------------------ the answer

    def _fewest_bytes(self, current: Candidate | None) -> Candidate:
        """Of the plans within half a per cent, the one that moves fewest bytes."""
        findings, before = self._findings, self._request.current
        assert findings.best is not None
        assert before is not None
        holders, best = findings.rank(findings.best)
        limit = best * NEAR
        if current is not None and findings.rank(current)[0] == holders:
            limit = min(limit, findings.objective(current))
        near = [c for c in findings.found if findings.rank(c) <= (holders, limit)]
        near = sorted(near, key=findings.rank)[:FINALISTS]
        for candidate in tuple(near):
            if candidate.recipe is not None:
                kept = self._judge.settle(candidate.recipe, before)
                if kept is not None and findings.rank(kept) <= (holders, limit):
                    near.append(kept)
        model = self._request.workload.model
        bytes_of = {id(c): bytes_to_move(model, before, c.plan) for c in near}
        return min(near, key=lambda c: (bytes_of[id(c)], findings.objective(c)))

    def _answer(self, chosen: Candidate) -> PlanAnswer:
        request, plan = self._request, chosen.plan
        moved = None
        if request.current is not None:
            moved = bytes_to_move(request.workload.model, request.current, plan)
        planning_s = time.perf_counter() - self._began_s
        return PlanAnswer(
            plan,
            chosen.price,
            simulated_seconds(chosen.price),
            chosen.holders,
            tuple(self._stages),
            planning_s,
            moved,
            idle_gpus(plan, request.composition),
            tuple(self._notes(chosen)),
        )

    def _notes(self, chosen: Candidate) -> Iterator[str]:
        asked, nodes = self._request.min_holders, self._request.composition.nodes
        if chosen.holders < asked:
            where = (
                f"the composition has {len(nodes)} node(s)"
                if len(nodes) < asked
                else "no plan that reaches it fits in memory"
            )
            yield (
                f"every piece of the state should live on {asked} nodes, "
                f"this plan reaches {chosen.holders}: {where}"
            )
        unknown = sorted({n.gpu_type for n in nodes} - set(self._profile.types))
        if unknown:
            yield f"GPU type {unknown[0]!r} has no profile for this model; its nodes stay idle"
