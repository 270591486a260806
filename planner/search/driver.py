"""Find the best plan for a composition, and say how it was found.

An anytime search in stages.  The engines (`planner.search.engines`) find plans before their
placement, which are placed and priced by the one evaluator.  On a few GPUs fill and placement are
then searched together from the best of these, every plan priced exactly.
Invariants: the same request and seed give the same plan unless seconds cut the search short; the
answer is never slower than the current plan while that still fits (unless it puts every piece on
more of the nodes that were asked for).
Source: design, section 2 ("An anytime planner in stages").
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.cost.variants import FEW_GPUS
from planner.errors import Infeasible, InvalidPolicy, NoPolicy, PolicyMisfit
from planner.estimator.build_tables import Pricing, pricing_of
from planner.plans.movement import bytes_to_move
from planner.profiles.profile import Profile
from planner.request import ROLLOUT_METHODS, PlanAnswer, PlanRequest, idle_gpus
from planner.search.candidate import Candidate, Judge
from planner.search.choice import fewest_bytes, notes_of
from planner.search.course import Course
from planner.search.few_gpus.exact_search import ExactSearch
from planner.search.infeasible import why_infeasible

if TYPE_CHECKING:
    from planner.search.kernel_search import KernelSearch

__all__ = ["PlanAnswer", "PlanRequest", "search"]

INSIDE_SHARE = 0.2  # of the seconds, for plans whose gradients do not leave nodes
BY_TYPE_SHARE = 0.5  # of the seconds, for plans whose templates stand on nodes of any size
FEW_SHARE = 0.3  # of the seconds, for the kernel where few GPUs are searched exactly after it
LOAD_S = 0.02  # what loading takes less than if it was done before


def search(
    request: PlanRequest, profile: Profile, clock: Callable[[], float] = time.perf_counter
) -> PlanAnswer:
    """The best plan found within the budget.

    Args:
        request: what is asked.
        profile: supplies all costs.
        clock: whose seconds the budget counts; a benchmark beside other work has its own, of the
            processor, which is why one thread searches then.

    Raises:
        Infeasible: no plan fits; the message names the term that binds, and by how much.
        UnprofiledConfiguration: the profile speaks of another workload.
    """
    return _Search(request, profile, clock).run()


class _Search:
    """Which stages a search has, and what becomes of their plans."""

    def __init__(self, request: PlanRequest, profile: Profile, clock: Callable[[], float]) -> None:
        profile.require(request.workload)
        if clock is not time.perf_counter:
            request = replace(request, threads=1)
        self._request, self._profile = request, profile
        known = tuple(n for n in request.composition.nodes if n.gpu_type in profile.types)
        self._composition = replace(request.composition, nodes=known)
        judge = Judge(request.workload, self._composition, profile, request.min_holders)
        self._course = Course(request, judge, clock)
        self._warnings: tuple[str, ...] = ()

    def run(self) -> PlanAnswer:
        """All stages of the search, one after the other."""
        request, findings, judge = self._request, self._course.findings, self._course.judge
        current = None
        if request.current is not None:
            current = judge.as_it_is(request.current)
            findings.offer(current)
        pricing = self._pricing()
        if request.method in ROLLOUT_METHODS:
            self._roll_out(pricing)
        else:
            self._search_all(pricing)
        chosen = findings.best or findings.nearest
        if chosen is None:
            raise Infeasible(why_infeasible(request, self._profile))
        if request.current is not None and findings.best is not None:
            chosen = fewest_bytes(findings, judge, current)
        return self._answer(chosen)

    def _search_all(self, pricing: Pricing | None) -> None:
        if pricing is None:
            return
        self._load_kernel(pricing)
        propose = self._propose if self._request.method == "auto" else None
        if self._composition.gpus > FEW_GPUS:
            if self._request.max_templates < len(pricing.classes):
                self._search_by_type(len(pricing.classes))
            self._search_with_kernel(pricing, 1.0, propose)
            return
        inside = self._pricing(stays_inside=True)
        if inside is not None:
            self._search_with_kernel(inside, INSIDE_SHARE, None)
        self._search_with_kernel(pricing, FEW_SHARE, propose)
        self._search_exactly()

    # ------------------------------------------------------------------ which way

    def _pricing(self, *, stays_inside: bool = False, by_type: bool = False) -> Pricing | None:
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
            by_type=by_type,
        )

    def _load_kernel(self, pricing: Pricing) -> None:
        """Load what numba has compiled, once a process; it is no part of the budget."""
        begun_s = self._course.now_s()
        from planner.search.kernel_search import load

        load(pricing)
        seconds = self._course.now_s() - begun_s
        if seconds > LOAD_S:
            self._course.leave_out(seconds)
            self._course.record("load kernel", begun_s)

    # ------------------------------------------------------------------ stages of the search

    def _search_exactly(self) -> None:
        """On a few GPUs: fill and placement together, every plan priced exactly."""
        course = self._course
        begun_s = course.now_s()
        end_s = begun_s + course.left_s()
        search = ExactSearch(course.judge, course.findings)
        search.run(lambda: course.now_s() >= end_s, self._request.most_evaluations)
        course.record("exact search", begun_s)

    def _search_with_kernel(
        self, pricing: Pricing, share: float, propose: Callable[[KernelSearch], None] | None
    ) -> None:
        """Annealing and column generation, and plans of the policy if they are to join."""
        from planner.search.engines import Engines

        Engines(self._course, pricing, share).run(propose)

    def _search_by_type(self, classes: int) -> None:
        """Where templates are too few for every node class, those that stand on several of them."""
        pricing = self._pricing(by_type=True)
        if pricing is not None and len(pricing.classes) < classes:
            self._search_with_kernel(pricing, BY_TYPE_SHARE, None)

    def _roll_out(self, pricing: Pricing | None) -> None:
        """The best plans of rollouts alone, of the policy or of uniform choices."""
        if pricing is None:
            return
        self._load_kernel(pricing)
        from planner.search.kernel_search import KernelSearch, wishes_of

        for least in sorted({pricing.tables.min_replicas, 1}, reverse=True):
            tables = pricing.tables._replace(min_replicas=least)
            kernel = KernelSearch(replace(pricing, tables=tables), wishes_of(self._request), 0)
            self._propose(kernel)
            if self._course.findings.found:
                return

    def _propose(self, kernel: KernelSearch) -> None:
        """Offer the kernel what rollouts find; without a policy that fits, auto only says so."""
        from planner.policy.propose import rollouts_of

        request, course = self._request, self._course
        begun_s = course.now_s()
        try:
            found = rollouts_of(
                request, self._composition, self._profile, kernel.pricing, kernel.wishes
            )
        except (NoPolicy, PolicyMisfit, InvalidPolicy) as why:
            is_damaged = isinstance(why, InvalidPolicy) and request.policy is not None
            if request.method in ROLLOUT_METHODS or is_damaged:
                raise
            course.record("no policy", begun_s)
            self._warnings = (f"no policy took part: {why}",)
            return
        kernel.take(found.elites, found.evaluations)
        self._warnings = (found.warning,) if found.warning else ()
        course.findings.evaluations += found.evaluations
        course.settle_first(kernel.recipes())
        course.record("policy" if request.method == "auto" else request.method, begun_s)

    # ------------------------------------------------------------------ the answer

    def _answer(self, chosen: Candidate) -> PlanAnswer:
        request, plan = self._request, chosen.plan
        moved = None
        if request.current is not None:
            moved = bytes_to_move(request.workload.model, request.current, plan)
        return PlanAnswer(
            plan,
            chosen.price,
            chosen.holders,
            tuple(self._course.stages),
            self._course.passed_s,
            moved,
            idle_gpus(plan, request.composition),
            (*notes_of(request, self._profile, chosen), *self._warnings),
        )
