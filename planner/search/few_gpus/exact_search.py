"""Improve plans on few GPUs, where fill and placement decide and the estimator only guesses them.

Best-first over sets of templates: the set of the best plan so far is taken, every set one step from
it is filled and placed in a few ways, and each such plan descends, step by step, through better
fills, depths and placements.  Every plan on the way is priced exactly
(`planner.search.few_gpus.costs`).
Invariant: the same request and seed give the same plan unless seconds cut the search short; with
more evaluations it goes on from there.
Legend: b micro-batch, n replicas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from random import Random

from planner.cost.money import highest_price, minimised_price, nodes_price, plan_price
from planner.cost.variants import variants_of
from planner.placement.place import room_of
from planner.search.candidate import Evaluator
from planner.search.few_gpus.costs import CandidateCosts, Cost
from planner.search.few_gpus.first_plans import FirstFills, first_placements
from planner.search.few_gpus.moves import depth_moves, fill_moves, placement_moves, split_moves
from planner.search.few_gpus.placed_candidate import (
    PlacedCandidate,
    candidate_of,
    canonical,
    plan_of,
    twins_of,
)
from planner.search.few_gpus.templates import Counts, adjacent, counts_of, starts
from planner.search.fill import Filling, Structure, options
from planner.search.solution_pool import NEAR_RATIO, SolutionPool

STARTS = 24  # of the plans that other engines found
FRESH = 20  # sets of one template between two sets that are taken
TRIED = 3  # first fills of a placed set that are priced
POOL = 16  # templates that may take the room of others
PER_DEMAND = 2  # of them, of those that need the same GPUs
PROMISING_RATIO = 1.25  # a first fill that is slower than the best plan by more is priced last
HOPEFUL_RATIO = 1.15  # a first plan that is slower than the best by more descends last
CLOSE_RATIO = 1.05  # a first plan that is slower than the best of its set by more does not descend
WORTHY_RATIO = 1.1  # a plan that is slower than the best by more keeps its nodes
SHAKEN = 10  # plans of different sets that are changed at random in the end
MOST_SHAKES = 4  # random steps
MOST_IN_VAIN = 500  # sets that are visited, however small the budget, until a plan is found
STALE = 300  # random plans in a row that were seen before, after which the search ends

Value = tuple[int, float]  # as `SolutionPool.rank`
WORST: Value = (1, math.inf)


class ExactSearch:
    """One search over few GPUs: what it knows of plans and sets of templates."""

    def __init__(self, evaluator: Evaluator, solutions: SolutionPool) -> None:
        """Prepare.

        Args:
            evaluator: places and prices plans.
            solutions: takes candidates, and holds the request.
        """
        self._evaluator, self._solutions, self._request = evaluator, solutions, solutions.request
        self._is_late: Callable[[], bool] = lambda: False
        self._most = 0
        workload, profile = evaluator.workload, evaluator.profile
        composition = evaluator.composition
        self._composition = composition
        self._limits = evaluator.max_gpus
        self._choices = options(composition, workload.model, profile)
        gpus = self._limits.allowed(composition)
        self._configurations = {
            option: tuple(
                (v.recompute, v.ep, v.etp)
                for v in variants_of(
                    workload, composition, profile, option, self._request.allow_ep, gpus=gpus
                )
            )
            for option in self._choices
        }
        known = {b for kind in composition.gpu_types for b in profile.micro_batches(kind)}
        self._sizes = sorted(b for b in known if b <= workload.global_batch)
        self._costs = CandidateCosts(workload, composition, profile)
        self._fills = FirstFills(self._costs, self._configurations, self._sizes)
        self._room = room_of(composition)
        request = self._request
        by_node = request.needs_prices or request.min_holders > 1
        self._twins = twins_of(composition, by_node=by_node)
        self._gpu_s: dict[Structure, float] = {}  # GPU seconds of a batch, gradients apart
        self._seen: set[PlacedCandidate] = set()
        self._visited: set[Counts] = set()
        self._best: dict[Counts, tuple[Value, PlacedCandidate]] = {}  # plan of each set
        self._heap: list[tuple[Value, Counts]] = []  # sets whose neighbours were not visited yet
        self._left: list[tuple[Value, PlacedCandidate]] = []  # first plans that look hopeless

    def run(self, is_late: Callable[[], bool], most: int) -> None:
        """Search until nothing is left to look at, or the budget is spent.

        Args:
            is_late: whether the time is up.
            most: evaluations in all, those of other engines included.
        """
        self._is_late, self._most = is_late, most
        ranked = sorted(self._solutions.found, key=self._solutions.rank)
        for known in ranked[:STARTS]:
            self._improve(candidate_of(known.plan, self._composition))
        singles = starts(self._choices, self._request.deepest, self._room, self._limits)
        while not self._is_over():
            fresh = tuple(islice(singles, FRESH))
            self._visit_all(fresh)
            if self._heap:
                self._expand()
            elif self._left and not fresh:
                _, candidate = heappop(self._left)
                self._seen.discard(candidate)
                self._improve(candidate)
            elif not fresh:
                break
        self._shake()

    def _shake(self) -> None:
        """Descend again from the plans of the best sets, changed at random."""
        random = Random(self._request.seed)
        stale = 0
        while self._best and stale < STALE and not self._is_over():
            ranked = sorted(self._best.values())[:SHAKEN]
            _, candidate = ranked[random.randrange(len(ranked))]
            for _ in range(random.randrange(1, MOST_SHAKES + 1)):
                steps = list(self._steps(candidate, moves_nodes=True)) or [candidate]
                candidate = steps[random.randrange(len(steps))]
            stale = 0 if self._improve(candidate) else stale + 1

    def _is_over(self) -> bool:
        is_found = self._solutions.best is not None or self._solutions.nearest is not None
        if not is_found and len(self._visited) < MOST_IN_VAIN:
            return False
        return self._is_late() or self._solutions.evaluations >= self._most

    # ------------------------------------------------------------------ sets of templates

    def _expand(self) -> None:
        """Visit every set one step from the best one that was not taken yet."""
        _, counts = heappop(self._heap)
        self._visit_all(
            adjacent(
                counts,
                self._choices,
                self._pool(),
                self._request.deepest,
                self._room,
                self._limits,
            )
        )

    def _pool(self) -> list[Structure]:
        """For each demand of GPUs the templates that need least GPU time, the best ones first."""
        kept: dict[tuple[str, ...], int] = {}
        found = []
        for structure in sorted(self._gpu_s, key=lambda s: (self._gpu_s[s], s)):
            demand = tuple(sorted(kind for kind, tp in structure for _ in range(tp)))
            kept[demand] = kept.get(demand, 0) + 1
            if kept[demand] <= PER_DEMAND:
                found.append(structure)
        return found[:POOL]

    def _visit_all(self, sets: Iterable[Counts]) -> None:
        for counts in sets:
            if self._is_over():
                return
            if counts not in self._visited and len(counts) <= self._request.max_templates:
                self._visit(counts)

    def _visit(self, counts: Counts) -> None:
        """The best plans of a set that are found from its first fills and placements."""
        self._visited.add(counts)
        self._solutions.evaluations += 1  # its first fills are priced too, gradients apart
        evaluator, found = self._evaluator, []
        for placed in first_placements(
            counts, evaluator.workload.model, self._composition, evaluator.min_holders
        ):
            for filled in self._first_fills(placed):
                if self._is_over():
                    return
                value = self._value(filled, WORST)
                if value is not None:
                    found.append((value, filled))
        found.sort()
        for value, filled in found:
            if value > (found[0][0][0], found[0][0][1] * CLOSE_RATIO):
                break
            if self._is_near(value, HOPEFUL_RATIO):
                self._descend(filled, value)
            else:
                heappush(self._left, (value, filled))

    def _first_fills(self, placed: PlacedCandidate) -> list[PlacedCandidate]:
        """The fastest first fills, gradients apart, that may lead to a best plan."""
        found = []
        for filled in self._fills.of(placed):
            cost = self._costs.without_sync(filled)
            if cost is not None:
                found.append((cost.seconds, canonical(filled, self._twins)))
        found.sort()
        if found and len(placed) == 1:
            structure, replicas = placed[0].structure, len(placed[0].where)
            gpu_s = found[0][0] * replicas * sum(tp for _, tp in structure)
            self._gpu_s[structure] = min(self._gpu_s.get(structure, math.inf), gpu_s)
        promising = []
        for seconds, filled in found[:TRIED]:
            least = (self._reach(filled), seconds * self._weight(filled))
            if self._is_near(least, PROMISING_RATIO):
                promising.append(filled)
            else:
                heappush(self._left, (least, filled))
        return promising

    # ------------------------------------------------------------------ one plan

    def _improve(self, candidate: PlacedCandidate) -> bool:
        """Descend from a plan, unless it was seen before or does not fit."""
        if self._is_over():
            return False
        candidate = canonical(candidate, self._twins)
        value = self._value(candidate, WORST)
        if value is not None:
            self._descend(candidate, value)
        return value is not None

    def _descend(self, candidate: PlacedCandidate, value: Value) -> None:
        """Take every step that helps, until none does; good plans alone change depth or nodes."""
        is_better = True
        while is_better:
            is_better = False
            for step in self._steps(candidate, moves_nodes=self._is_near(value, WORTHY_RATIO)):
                if self._is_over():
                    return
                moved = canonical(step, self._twins)
                found = self._value(moved, value)
                if found is not None:
                    candidate, value, is_better = moved, found, True
                    break

    def _steps(self, candidate: PlacedCandidate, *, moves_nodes: bool) -> Iterator[PlacedCandidate]:
        yield from fill_moves(candidate, self._configurations, self._sizes)
        if moves_nodes:
            yield from depth_moves(candidate, self._configurations, self._request.deepest)
            alike = self._twins if self._limits.binds(self._composition) else ()
            yield from placement_moves(candidate, self._composition, alike)
            yield from split_moves(candidate, self._configurations, self._sizes)

    def _is_near(self, value: Value, factor: float) -> bool:
        """Whether a plan is as good as the best up to that factor."""
        best = self._solutions.best
        if best is None:
            return True
        reach, objective = self._solutions.rank(best)
        return value <= (reach, objective * factor)

    def _value(self, candidate: PlacedCandidate, limit: Value) -> Value | None:
        """How good a plan is; None if it was seen, does not fit, or is no better than that."""
        if candidate in self._seen or len(candidate) > self._request.max_templates:
            return None
        self._seen.add(candidate)
        reach, weight = self._reach(candidate), self._weight(candidate)
        if reach > limit[0] or (weight == math.inf and not self._is_nearer(candidate)):
            return None
        self._solutions.evaluations += 1
        limit_s = limit[1] / weight if reach == limit[0] and weight < math.inf else math.inf
        cost = self._costs.of(candidate, limit_s)
        if cost is None:
            return None
        if weight == math.inf:
            self._offer(candidate, cost)
            return None
        value = (reach, cost.seconds * weight)
        counts = counts_of(candidate)
        if counts not in self._best or value < self._best[counts][0]:
            self._best[counts] = (value, candidate)
            heappush(self._heap, (value, counts))
        # without a plan that runs only the best is asked for; else of near ones the fewest bytes
        if self._is_near(value, 1 - 1e-12 if self._request.current is None else NEAR_RATIO):
            self._offer(candidate, cost)
        return value

    def _reach(self, candidate: PlacedCandidate) -> int:
        """On how many nodes every piece lives, as ranks count them."""
        if self._request.min_holders == 1:
            return -1
        shares = [1] * sum(len(one.where) for one in candidate)
        plan = plan_of(candidate, shares, self._composition)
        plan = plan.with_zero(self._evaluator.workload.zero)
        holders = self._evaluator.holders(plan)
        return self._solutions.rank_of(holders, 0.0)[0]

    def _weight(self, candidate: PlacedCandidate) -> float:
        """Weight of a second of the plan: 1, or the price of its nodes; infinite above a limit."""
        request = self._request
        if not request.needs_prices:
            return 1.0
        per_hour = self._per_hour(candidate)
        if per_hour > highest_price(request.max_price):
            return math.inf
        return minimised_price(per_hour) if request.objective == "cost" else 1.0

    def _per_hour(self, candidate: PlacedCandidate) -> float:
        """Money per hour of the nodes that a plan uses; infinite if nobody said."""
        used = {node for one in candidate for where in one.where for node in where}
        per_hour = nodes_price(self._composition.nodes[node] for node in used)
        return math.inf if per_hour is None else per_hour

    def _is_nearer(self, candidate: PlacedCandidate) -> bool:
        """Whether a plan beyond the limit of money is cheaper than all of them so far."""
        nearest = self._solutions.nearest
        if nearest is None:
            return True
        known = plan_price(nearest.plan, self._composition)
        return known is None or self._per_hour(candidate) < known

    def _offer(self, candidate: PlacedCandidate, cost: Cost) -> None:
        """Have the evaluator say what the plan costs."""
        first, unplaced = 0, []
        for one in candidate:
            filling = Filling(
                layers=one.layers, lane=cost.lanes[first], stage_configs=one.configurations
            )
            unplaced.append((one.structure, len(one.where), filling))
            first += len(one.where)
        plan = plan_of(candidate, cost.shares, self._composition)
        self._solutions.offer(self._evaluator.priced(tuple(unplaced), plan))
