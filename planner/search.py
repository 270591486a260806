"""Find the best plan for a composition, and say how it was found.

An anytime search in stages.  On a few GPUs every plan is placed and priced exactly; on more, the
jitted kernel anneals shortly over whole plans, then column generation, which builds templates from
prices, and walks from the best plans take turns; where they gain nothing more, the search starts
afresh.  What they found is placed and priced by the one evaluator.
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
from itertools import cycle, islice
from typing import TYPE_CHECKING

from planner.brute_force import brute_force
from planner.candidate import Candidate, Judge, Recipe
from planner.choice import fewest_bytes, notes_of
from planner.errors import Infeasible, InvalidPolicy, NoPolicy, PolicyMisfit
from planner.findings import Findings
from planner.infeasible import why_infeasible
from planner.movement import bytes_to_move
from planner.pricing_tables import Pricing, pricing_of
from planner.profile import Profile
from planner.rearrange import rearranged
from planner.request import PlanAnswer, PlanRequest, SearchStage, idle_gpus
from planner.simulation import simulated_seconds
from planner.small_search import SmallSearch

if TYPE_CHECKING:
    from planner.columns import ColumnSearch
    from planner.kernel_search import KernelSearch

__all__ = ["PlanAnswer", "PlanRequest", "search"]

SMALL_GPUS = 8  # so few are searched exactly, unless the kernel knows plans that this does not
MEDIUM_GPUS = 16  # so few are searched both ways
EXACT_EVALUATIONS = 3000  # of the exact search: about a second
EXACT_SHARE = 0.4  # of the seconds
REARRANGED = 24  # plans whose stages are moved between a few nodes
SETTLED = 6  # of the kernel's best plans, placed and priced after each of its stages
ALL = 1000
LOAD_S = 0.02  # what loading takes less than if it was done before
ROLLOUTS = ("policy", "random")  # methods that build plans, and search nothing
INSIDE_SHARE = 0.3  # of the seconds, for plans whose gradients do not leave nodes
WALK_STEPS = 20_000  # plans of a walk after columns, at most; it takes no longer than they did
KERNEL_SHARE = 0.9  # on a few GPUs: the rest is for better placements
GAIN = 1e-4  # of turns that go on; so many walks without one, and the search starts afresh
WALKS = (  # one after the other: name, templates (0: all), temperature (0: that of improving)
    ("local search", 0, 0.0),
    ("anneal", 0, 0.03),
    ("local search", 0, 0.0),
    ("anneal one template", 1, 0.03),
)


def search(
    request: PlanRequest, profile: Profile, clock: Callable[[], float] = time.perf_counter
) -> PlanAnswer:
    """The best plan found within the budget.

    Args:
        request: what is asked.
        profile: supplies all costs.
        clock: whose seconds the budget counts; a benchmark beside other work takes the
            processor's.

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
        self._warnings: tuple[str, ...] = ()
        self._settle_s = 0.0  # what placing and pricing a plan takes

    def run(self) -> PlanAnswer:
        """All stages of the search, one after the other."""
        current = None
        if self._request.current is not None:
            current = self._judge.as_it_is(self._request.current)
            self._findings.offer(current)
        pricing = self._pricing()
        wants_rollouts = self._request.method in ROLLOUTS
        if pricing is not None and (wants_rollouts or not self._is_enough(pricing)):
            self._load_kernel(pricing)
        if wants_rollouts and pricing is not None:
            self._roll_out(pricing)
            pricing = None
        elif self._is_exact():
            self._search_exactly()
        if pricing is not None and not self._is_enough(pricing):
            is_medium = self._composition.gpus <= MEDIUM_GPUS
            inside = self._pricing(stays_inside=True) if is_medium else None
            if inside is not None:
                self._search_with_kernel(inside, INSIDE_SHARE, asks_policy=False)
            share, asks = (KERNEL_SHARE if is_medium else 1.0), self._request.method == "auto"
            self._search_with_kernel(pricing, share, asks_policy=asks)
            self._rearrange()
        best = self._findings.best or self._findings.nearest
        if best is None:
            raise Infeasible(why_infeasible(self._request, self._profile))
        chosen = best
        if self._request.current is not None and self._findings.best is not None:
            chosen = fewest_bytes(self._findings, self._judge, current)
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
        begun_s = self._clock()
        from planner.kernel_search import load

        load(pricing)
        seconds = self._clock() - begun_s
        if seconds > LOAD_S:
            self._started_s += seconds
            self._record("load kernel", begun_s)

    def _is_exact(self) -> bool:
        """Whether every plan is placed and priced exactly first."""
        is_auto = self._request.workload.recompute == "auto"
        return self._composition.gpus <= MEDIUM_GPUS and not is_auto

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

    def _until(self, share: float) -> Callable[[], bool]:
        """Whether that share of the time that is left now is over."""
        end_s = self._clock() + share * self._left_s()
        return lambda: self._findings.best is not None and self._clock() >= end_s

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

    def _search_exactly(self) -> None:
        whole = self._request.most_evaluations
        budget = min(whole, EXACT_EVALUATIONS)
        late = self._until(EXACT_SHARE)
        small = SmallSearch(self._judge, self._findings, late, budget)
        for name, stage in small.stages():
            started_s = self._clock()
            stage()
            self._record(name, started_s)

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
        from planner.kernel_search import COOL, KernelSearch

        request, findings = self._request, self._findings
        is_small = self._composition.gpus <= MEDIUM_GPUS
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
            self._settle(kernel.recipes(), ALL if is_small else most)

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
        turns = cycle(WALKS) if request.method != "search" else ()
        for name, templates, hot in turns:
            if kernel.evaluations >= int(whole * left) or left_s() <= 0:
                break
            begun_s = self._clock()
            self._generate_columns(kernel, columns, begun_s + left_s(), int(whole * left))
            if not kernel.found:
                break
            took_s = self._clock() - begun_s
            share = min(1.0, took_s / max(1e-9, left_s()))
            most = min(whole, (kernel.evaluations + WALK_STEPS) / max(1, left))
            walk(name, share, most, templates or request.max_templates, hot or COOL)
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
        priced = kernel.evaluations
        kernel = min(kernels, key=lambda one: one.best)
        kernel.evaluations = priced
        settle(SETTLED)

    def _roll_out(self, pricing: Pricing) -> None:
        """The best plans of rollouts alone, of the policy or of uniform choices."""
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

    def _rearrange(self) -> None:
        """On a few GPUs: better placements of the best plans."""
        if self._composition.gpus > MEDIUM_GPUS or self._request.current is not None:
            return
        started_s = self._clock()
        late = self._until(1.0)
        ranked = sorted(self._findings.found, key=self._findings.rank)
        for candidate in ranked[:REARRANGED]:
            if candidate.recipe is not None and not late():
                self._findings.offer(rearranged(candidate, self._judge, self._findings, late))
        self._record("rearrange", started_s)

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
