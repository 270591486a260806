"""Find the best plan for a composition, and say how it was found.

An anytime search in stages.  On a few GPUs fill and placement are searched together, every plan
priced exactly, before and after the kernel.  The jitted kernel anneals shortly over whole plans,
then column generation, which builds templates from prices, and walks take turns; where they gain
nothing more, the search starts afresh.  What they found is placed and priced by the one evaluator.
Invariants: the same request and seed give the same plan unless seconds cut the search short; the
answer is never slower than the current plan while that still fits (unless it puts every piece on
more of the nodes that were asked for).
Source: design, section 2 ("An anytime planner in stages").
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from planner.brute_force import brute_force
from planner.candidate import Candidate, Judge, Recipe
from planner.choice import fewest_bytes, notes_of
from planner.errors import Infeasible, InvalidPolicy, NoPolicy, PolicyMisfit
from planner.exact_search import ExactSearch
from planner.findings import Findings
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
SETTLED = 6  # of the kernel's best plans, placed and priced after each of its stages
SETTLED_TILED = 3  # after each of its walks, where experts are spread
LOAD_S = 0.02  # what loading takes less than if it was done before
ROLLOUTS = ("policy", "random")  # methods that build plans, and search nothing
INSIDE_SHARE = 0.2  # of the seconds, for plans whose gradients do not leave nodes
WALK_STEPS = 20_000  # plans of a walk after columns, at most; it takes no longer than they did
SMALL_SHARE = 0.3  # of the seconds, for the kernel where the exact search goes on after it
GAIN = 1e-4  # of turns that go on; so many walks without one, and the search starts afresh


def search(
    request: PlanRequest, profile: Profile, clock: Callable[[], float] = time.perf_counter
) -> PlanAnswer:
    """The best plan found within the budget.

    Args:
        request: what is asked.
        profile: supplies all costs.
        clock: whose seconds the budget counts; a benchmark beside other work has its own.

    Raises:
        Infeasible: no plan fits; the message names the term that binds, and by how much.
        UnprofiledConfiguration: the profile speaks of another workload.
    """
    if request.method == "brute-force":
        return brute_force(request, profile)
    return _Search(request, profile, clock).run()


class _Search:
    """One search: its budget, what it has found, and how."""

    def __init__(self, request: PlanRequest, profile: Profile, clock: Callable[[], float]) -> None:
        profile.require(request.workload)
        self._clock = clock
        self._began_s = self._started_s = self._clock()
        self._request = request
        self._profile = profile
        known = tuple(n for n in request.composition.nodes if n.gpu_type in profile.types)
        self._composition = replace(request.composition, nodes=known)
        self._judge = Judge(request.workload, self._composition, profile, request.min_holders)
        self._findings = Findings(request)
        self._stages: list[SearchStage] = []
        self._settled: set[object] = set()
        self._exact: ExactSearch | None = None
        self._warnings: tuple[str, ...] = ()
        self._settle_s = 0.0  # what placing and pricing a plan takes

    def run(self) -> PlanAnswer:
        """All stages of the search, one after the other."""
        current = None
        if self._request.current is not None:
            current = self._judge.as_it_is(self._request.current)
            self._findings.offer(current)
        pricing = self._pricing()
        if self._request.method in ROLLOUTS:
            self._roll_out(pricing)
        else:
            self._search_all(pricing)
        best = self._findings.best or self._findings.nearest
        if best is None:
            raise Infeasible(why_infeasible(self._request, self._profile))
        chosen = best
        if self._request.current is not None and self._findings.best is not None:
            chosen = fewest_bytes(self._findings, self._judge, current)
        return self._answer(chosen)

    def _search_all(self, pricing: Pricing | None) -> None:
        self._enumerate()
        if pricing is None or self._is_enough(pricing):
            return
        self._load_kernel(pricing)
        asks_policy = self._request.method == "auto"
        if not self._is_few():
            self._search_with_kernel(pricing, 1.0, asks_policy=asks_policy)
            return
        self._search_exactly(2 * EXACT_EVALUATIONS, EXACT_SHARE)
        inside = self._pricing(stays_inside=True)
        if inside is not None:
            self._search_with_kernel(inside, INSIDE_SHARE, asks_policy=False)
        self._search_with_kernel(pricing, SMALL_SHARE, asks_policy=asks_policy)
        self._search_exactly(self._request.most_evaluations, 1.0)

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
        begun_s = self._clock()
        from planner.kernel_search import load

        load(pricing)
        seconds = self._clock() - begun_s
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
        return self._started_s + budget_s - self._clock()

    def _left_to_search_s(self) -> float:
        """Without what placing and pricing the last plans will take."""
        left_s = self._left_s()
        if left_s == math.inf:
            return left_s
        return left_s - max(2 * self._settle_s, min(SETTLED * self._settle_s, 0.1 * left_s))

    def _record(self, name: str, started_s: float) -> None:
        best = self._findings.best
        samples = best.price.throughput_samples_s if best else 0.0
        seconds = self._clock() - started_s
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
        end_s = self._clock() + ENUMERATE_SHARE * self._left_s()
        budget = min(self._request.most_evaluations, EXACT_EVALUATIONS)

        def late() -> bool:
            return self._findings.best is not None and self._clock() >= end_s

        small = SmallSearch(self._judge, self._findings, late, budget)
        for name, stage in small.stages():
            started_s = self._clock()
            stage()
            self._record(name, started_s)

    def _search_exactly(self, evaluations: int, share: float) -> None:
        """On a few GPUs: fill and placement together, every plan priced exactly."""
        started_s = self._clock()
        self._exact = self._exact or ExactSearch(self._judge, self._findings)
        end_s = started_s + share * self._left_s()
        budget = min(self._request.most_evaluations, evaluations)
        self._exact.run(lambda: self._clock() >= end_s, budget)
        self._record("exact search", started_s)

    def _started(self, pricing: Pricing, *, asks_policy: bool) -> tuple[KernelSearch, KernelSearch]:
        """With so many pipelines as are asked for, or fewer if no such plan fits; and proposals."""
        from planner.kernel_search import KernelSearch, wishes_of

        wishes = wishes_of(self._request)
        kernel = KernelSearch(pricing, wishes, self._request.seed)
        proposals = KernelSearch(pricing, wishes, self._request.seed)
        if asks_policy:
            self._propose(proposals)
        kernel.evaluations = proposals.evaluations
        begun_s, priced = self._clock(), kernel.evaluations
        kernel.start()
        if not kernel.found and pricing.tables.min_replicas > 1:
            pricing = replace(pricing, tables=pricing.tables._replace(min_replicas=1))
            kernel = KernelSearch(pricing, wishes, self._request.seed)
            kernel.evaluations = priced
            kernel.start()
        self._findings.evaluations += kernel.evaluations - priced
        self._settle(kernel.recipes(), 1)
        self._record("uniform", begun_s)
        return kernel, proposals

    def _search_with_kernel(self, pricing: Pricing, whole: float, *, asks_policy: bool) -> None:
        from planner.columns import ColumnSearch
        from planner.kernel.local_search import HOT
        from planner.kernel_search import COOL, WALKS, KernelSearch, turns_of

        request, findings = self._request, self._findings
        # where experts sit decides what their exchange takes, which the kernel knows only roughly
        least = SETTLED_TILED if pricing.tables.spreads_experts else 1
        started_s = self._clock()
        kernel, proposals = self._started(pricing, asks_policy=asks_policy)
        wishes = kernel.wishes
        end_s = started_s + whole * self._left_to_search_s()
        first = findings.evaluations - kernel.evaluations
        left = max(0, request.most_evaluations - first)

        def left_s() -> float:
            return min(self._left_to_search_s(), end_s - self._clock())

        def settle(most: int) -> None:
            findings.evaluations = first + kernel.evaluations
            self._settle(kernel.recipes(), max(most, least))

        def walk(name: str, share: float, until: float, templates: int, hot: float) -> None:
            begun_s = self._clock()
            until_s = begun_s + share * left_s()
            kernel.walk(
                lambda: until_s - self._clock(),
                int(until * left),
                templates=templates,
                hot=hot,
                clock=self._clock,
            )
            settle(1)
            self._record(name, begun_s)

        def anneal() -> None:
            begun = kernel.evaluations / max(1, left)
            share = whole - begun
            walk("anneal one template", 0.05, begun + 0.05 * share, 1, HOT)
            walk("anneal", 0.08, begun + 0.15 * share, request.max_templates, HOT)

        if request.method != "columns":
            anneal()
        kernel.take(proposals.elites, 0)  # only now, so that the first walks look elsewhere
        kernels = [kernel]
        columns = ColumnSearch(kernel.pricing, wishes, request.seed)
        best, stale = kernel.best, 0
        for name, templates, hot in turns_of(request.method):
            if kernel.evaluations >= int(whole * left) or left_s() <= 0:
                break
            begun_s, priced = self._clock(), kernel.evaluations
            self._generate_columns(kernel, columns, begun_s + left_s(), int(whole * left))
            took_s = self._clock() - begun_s
            share = min(1.0, took_s / max(1e-9, left_s()))
            most = min(whole, (kernel.evaluations + WALK_STEPS) / max(1, left))
            walk(name, share, most, templates or request.max_templates, hot or COOL)
            if not kernel.found or (kernel.evaluations == priced and not templates):
                break  # nothing to walk from, or nothing left to price and no clock to end this
            stale = 0 if kernel.best < best * (1 - GAIN) else stale + 1
            if stale == len(WALKS):  # nothing more is found from here: afresh
                kernel = KernelSearch(kernel.pricing, wishes, request.seed + len(kernels))
                kernel.evaluations = kernels[-1].evaluations
                kernels.append(kernel)
                kernel.start()
                anneal()
                stale = 0
            best = kernel.best
        walk("local search", 1.0, whole, request.max_templates, COOL)
        best_kernel = min(kernels, key=lambda one: one.best)
        best_kernel.evaluations, kernel = kernel.evaluations, best_kernel
        settle(SETTLED)

    def _roll_out(self, pricing: Pricing | None) -> None:
        """The best plans of rollouts alone, of the policy or of uniform choices."""
        if pricing is None:
            return
        self._load_kernel(pricing)
        from planner.kernel_search import KernelSearch, wishes_of

        for least in sorted({pricing.tables.min_replicas, 1}, reverse=True):
            tables = pricing.tables._replace(min_replicas=least)
            kernel = KernelSearch(replace(pricing, tables=tables), wishes_of(self._request), 0)
            self._propose(kernel)
            if self._findings.found:
                return

    def _propose(self, kernel: KernelSearch) -> None:
        """Offer the kernel what rollouts find; without a policy that fits, auto only says so."""
        from planner.policy.propose import rollouts_of

        begun_s = self._clock()
        name = "random" if self._request.method == "random" else "policy"
        try:
            found = rollouts_of(
                self._request, self._composition, self._profile, kernel.pricing, kernel.wishes
            )
        except (NoPolicy, PolicyMisfit, InvalidPolicy) as why:
            if self._request.method == "policy":
                raise
            self._record(f"no policy: {why}", begun_s)
            return
        kernel.take(found.elites, found.evaluations)
        self._warnings = (found.warning,) if found.warning else ()
        self._findings.evaluations += found.evaluations
        for _, recipe in kernel.recipes():
            self._settled.add(recipe)
            if self._findings.offer(self._judge.settle(recipe)):
                break
        self._record(name, begun_s)

    def _generate_columns(
        self, kernel: KernelSearch, columns: ColumnSearch, end_s: float, most: int
    ) -> None:
        """Templates built from prices, mixed to whole plans."""
        begun_s = self._clock()
        others = kernel.evaluations - columns.priced
        first = columns.priced

        def over() -> bool:
            return self._clock() >= end_s or others + columns.priced >= most

        columns.run(kernel.elites, over, 1)
        kernel.evaluations = others + columns.priced
        self._findings.evaluations += columns.priced - first
        self._settle(kernel.recipes(), 1)
        self._record("columns", begun_s)

    def _settle(self, recipes: Iterator[tuple[float, Recipe]], most: int = SETTLED) -> None:
        """Place and price the kernel's best plans."""
        for rank, (_, recipe) in enumerate(islice(recipes, most)):
            begun_s = self._clock()
            is_late = self._left_s() < (self._settle_s if rank else 0.0)
            if recipe in self._settled or (self._findings.best and is_late):
                continue
            self._settled.add(recipe)
            self._findings.offer(self._judge.settle(recipe))
            self._settle_s = self._clock() - begun_s

    # ------------------------------------------------------------------ the answer

    def _answer(self, chosen: Candidate) -> PlanAnswer:
        request, plan = self._request, chosen.plan
        moved = None
        if request.current is not None:
            moved = bytes_to_move(request.workload.model, request.current, plan)
        planning_s = self._clock() - self._began_s
        return PlanAnswer(
            plan,
            chosen.price,
            simulated_seconds(chosen.price),
            chosen.holders,
            tuple(self._stages),
            planning_s,
            moved,
            idle_gpus(plan, request.composition),
            (*notes_of(request, self._profile, chosen), *self._warnings),
        )
