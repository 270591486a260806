"""Find the best plan for a composition, and say how it was found.

An anytime search.  A portfolio of searchers (`planner.search.portfolio`) finds plans before their
placement, from plans of the learned policy and of its own; the best are placed and priced by the
one evaluator.  On a few GPUs fill and placement are then searched together from the best of these,
every plan priced exactly.
Nodes beyond what limits on GPUs could use are left out before.  Where nodes have several hosts,
all engines see each host as a node.
Invariants: the same request and seed give the same plan unless seconds cut the search short; the
answer is never slower than the current plan while that still fits (unless it puts every piece on
more of the nodes that were asked for); of two searches that plans end, the one with more is never
worse.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from planner.cluster.composition import Composition
from planner.cost.variants import FEW_GPUS
from planner.errors import Infeasible, InvalidPolicy, NoPolicy, PolicyMisfit
from planner.estimator.build_tables import Pricing, pricing_of
from planner.placement.node_classes import within_limits
from planner.plans.hosts import plan_on_hosts, plan_on_nodes, with_hosts
from planner.plans.movement import bytes_to_move
from planner.profiles.profile import Profile
from planner.request import ROLLOUT_METHODS, PlanAnswer, PlanRequest, idle_gpus
from planner.search.budget import Budget, Clock, never
from planner.search.candidate import Candidate, Evaluator
from planner.search.choice import fewest_bytes, notes_of
from planner.search.state import SearchState

if TYPE_CHECKING:
    from planner.search.few_gpus.exact_search import ExactSearch
    from planner.search.searcher import Searcher

FEW_NODES = 64  # on which few GPUs that a plan may use are searched exactly
FEW_SHARE = 0.3  # of the seconds, for the portfolio where few GPUs are searched exactly after it
FEW_PLANS = 400  # that it prices then, at most
ROLLOUT_SHARE = 0.5  # of the seconds, for rollouts: the searchers go on from them
LOAD_S = 0.02  # what loading takes less than if it was done before


def search(
    request: PlanRequest,
    profile: Profile,
    clock: Clock = time.perf_counter,
    interrupted: Callable[[], bool] = never,
) -> PlanAnswer:
    """The best plan found within the budget.

    Args:
        request: what is asked.
        profile: supplies all costs.
        clock: whose seconds the budget counts; a benchmark beside other work has its own, of the
            processor, which is why one thread searches then.
        interrupted: whether the search is to end now with the best plan so far.

    Raises:
        Infeasible: no plan fits; the message names the term that binds, and by how much.
        KeyboardInterrupt: the search was interrupted before it had a plan.
        UnprofiledConfiguration: the profile speaks of another workload.
    """
    profile.require(request.workload)
    if clock is not time.perf_counter:
        request = replace(request, threads=1)
    hosted = with_hosts(request.composition, profile)
    if hosted is request.composition:
        return _Search(request, profile, Budget(request, clock, interrupted)).run()
    current = None if request.current is None else plan_on_hosts(request.current, hosted)
    asked = replace(request, composition=hosted, current=current)
    found = _Search(asked, profile, Budget(asked, clock, interrupted)).run()
    return _on_nodes(found, request, hosted)


def _on_nodes(found: PlanAnswer, request: PlanRequest, hosted: Composition) -> PlanAnswer:
    """An answer for hosts as the answer for their nodes."""
    plan, moved = plan_on_nodes(found.plan, hosted), None
    if request.current is not None:
        moved = bytes_to_move(request.workload.model, request.current, plan)
    idle = idle_gpus(plan, request.composition)
    return replace(found, plan=plan, bytes_to_move=moved, idle=idle)


class _Search:
    """Which engines a search has, and what becomes of their plans."""

    def __init__(self, request: PlanRequest, profile: Profile, budget: Budget) -> None:
        self._request, self._profile, self._budget = request, profile, budget
        known = tuple(n for n in request.composition.nodes if n.gpu_type in profile.types)
        limits, kept = request.max_gpus, request.current.nodes if request.current else ()
        self._composition = within_limits(Composition(known), limits, frozenset(kept))
        self._gpus = limits.allowed(self._composition)  # that a plan may use
        evaluator = Evaluator(
            workload=request.workload,
            composition=self._composition,
            profile=profile,
            min_holders=request.min_holders,
            max_gpus=limits,
        )
        self._state = SearchState(request, evaluator, budget)
        self._warnings: tuple[str, ...] = ()
        self._in_vain: ExactSearch | None = None

    def run(self) -> PlanAnswer:
        """All engines, one after the other, and the answer."""
        request, state = self._request, self._state
        current = None
        if request.current is not None:
            begun_s = self._budget.now_s()
            current = state.evaluator.as_it_is(request.current)
            state.pool.offer(current)
            state.record("current plan", begun_s)
        pricing = self._pricing()
        if pricing is not None:
            self._load()
            if request.method in ROLLOUT_METHODS:
                self._roll_out(pricing)
            else:
                self._search(pricing)
        chosen = state.pool.best or state.pool.nearest
        if chosen is None:
            if self._budget.interrupted():
                raise KeyboardInterrupt
            from planner.search.infeasible import why_infeasible

            raise Infeasible(why_infeasible(request, self._profile, self._budget.interrupted))
        if request.current is not None and state.pool.best is not None:
            chosen = fewest_bytes(state.pool, state.evaluator, current, lambda: state.is_late)
        return self._answer(chosen)

    def _search(self, pricing: Pricing) -> None:
        from planner.search.portfolio import Portfolio  # only now, as numba is slow to import

        request, state = self._request, self._state
        propose = self._propose if request.method == "auto" else None
        if self._gpus <= FEW_GPUS and len(self._composition.nodes) <= FEW_NODES:
            inside = self._pricing(stays_inside=True)
            pricings = [one for one in (inside, pricing) if one is not None]
            Portfolio(state, pricings, FEW_SHARE, FEW_PLANS).run(propose, self._search_in_vain)
            if request.most_evaluations > FEW_PLANS:  # else all was for the portfolio
                self._search_exactly(request.most_evaluations)
            return
        pricings = [pricing]
        if request.max_templates < len(pricing.classes):  # too few for every node class
            by_type, any_speed = self._pricing(by_type=True), self._pricing(any_speed=True)
            for coarse in (any_speed, by_type):
                if coarse is not None and len(coarse.classes) < len(pricings[0].classes):
                    pricings.insert(0, coarse)
        Portfolio(state, pricings).run(propose)

    def _search_in_vain(self) -> None:
        """The exact search until it has a plan, where plans to start from have none."""
        self._search_exactly(0)

    def _search_exactly(self, most: int) -> None:
        """On a few GPUs: fill and placement together, every plan priced exactly."""
        from planner.search.few_gpus.exact_search import ExactSearch

        budget, state = self._budget, self._state
        begun_s = budget.now_s()
        search = self._in_vain or ExactSearch(state.evaluator, state.pool)
        search.run(lambda: budget.left_s <= 0 or budget.interrupted(), most)
        self._in_vain = None if state.is_found else search  # goes on where it ended
        state.record("exact search", begun_s)

    def _pricing(
        self, *, stays_inside: bool = False, by_type: bool = False, any_speed: bool = False
    ) -> Pricing | None:
        if not self._gpus:
            return None
        least = min(self._request.min_holders, self._composition.num_nodes, self._gpus)
        return pricing_of(
            self._request.workload,
            self._composition,
            self._profile,
            min_replicas=least,
            allow_ep=self._request.allow_ep,
            stays_inside=stays_inside,
            by_type=by_type,
            any_speed=any_speed,
            max_gpus=self._request.max_gpus,
        )

    def _load(self) -> None:
        """Load what numba has compiled, once a process; it is no part of the budget."""
        begun_s = self._budget.now_s()
        from planner.search.loading import load

        load()
        seconds = self._budget.now_s() - begun_s
        if seconds > LOAD_S:
            self._budget.exclude(seconds)
            self._state.record("load kernel", begun_s)

    # ------------------------------------------------------------------ rollouts

    def _roll_out(self, pricing: Pricing) -> None:
        """The best plans of rollouts alone, of the policy or of uniform choices."""
        from planner.search.searcher import Searcher, limits_of

        for least in sorted({pricing.tables.min_replicas, 1}, reverse=True):
            tables = pricing.tables._replace(min_replicas=least)
            searcher = Searcher(replace(pricing, tables=tables), limits_of(self._request), 0)
            self._propose(searcher, lambda _: True)
            if self._state.pool.found:
                return

    def _propose(self, searcher: Searcher, fits: Callable[[int], bool]) -> None:
        """Give a searcher what rollouts find; without a policy that fits, auto only says so.

        Rollouts that plans cut short join without being placed, so that a search with more plans,
        which builds them to their end, misses nothing.
        """
        from planner.policy.propose import rollouts_of

        request, state, budget = self._request, self._state, self._budget
        begun_s = budget.now_s()
        end_s = math.inf  # rollouts alone take as many plans as were asked for
        if request.method not in ROLLOUT_METHODS:
            end_s = begun_s + ROLLOUT_SHARE * budget.left_s
        asked = count()

        def goes_on(plans: int) -> bool:
            # where seconds end the search every rollout gets a template, however late it is
            is_first = next(asked) == 0 and not budget.counts_plans
            return is_first or (fits(plans) and budget.now_s() < end_s)

        try:
            found = rollouts_of(
                request,
                self._composition,
                self._profile,
                searcher.pricing,
                searcher.limits,
                goes_on,
            )
        except (NoPolicy, PolicyMisfit, InvalidPolicy) as why:
            is_damaged = isinstance(why, InvalidPolicy) and request.policy is not None
            if request.method in ROLLOUT_METHODS or is_damaged:
                raise
            state.record("no policy", begun_s)
            self._warnings = (  # what to do then is for a method that needs one
                f"no policy took part, the other engines planned alone: {why.finding}",
            )
            return
        searcher.take(found.top_k, found.evaluations)
        state.pool.evaluations += found.evaluations
        self._warnings = (found.warning,) if found.warning else ()
        if fits(0):
            state.place_until_better(searcher.unplaced_candidates())
        state.record("policy" if request.method == "auto" else request.method, begun_s)

    # ------------------------------------------------------------------ the answer

    def _answer(self, chosen: Candidate) -> PlanAnswer:
        request, plan = self._request, chosen.plan
        moved = None
        if request.current is not None:
            moved = bytes_to_move(request.workload.model, request.current, plan)
        return PlanAnswer(
            plan=plan,
            cost=chosen.cost,
            holders_min=chosen.holders,
            search_steps=tuple(self._state.steps),
            planning_s=self._budget.passed_s,
            bytes_to_move=moved,
            idle=idle_gpus(plan, request.composition),
            notes=(*notes_of(request, self._profile, chosen), *self._warnings),
        )
