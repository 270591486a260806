"""Improve plans on few nodes, where fill and placement decide and the kernel only estimates them.

Best-first over bags of structures: the best bag so far is taken, every bag one step from it is
filled and placed in a few ways, and each such plan descends, step by step, through better fills and
placements.  Every plan on the way is priced exactly (`planner.search.few_gpus.exact_pricing`).
Invariant: the same request and seed give the same plan unless seconds cut the search short.
Source: design, section 2 (local search on whole plans).   Legend: b micro-batch, n replicas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from random import Random

from planner.cost.money import minimised_price, plan_price
from planner.cost.variants import variants_of
from planner.placement.place import room_of
from planner.search.candidate import Judge
from planner.search.few_gpus.draft import (
    Drafts,
    Way,
    canonical_drafts,
    counts_of_drafts,
    drafts_of,
    holders_of,
    plan_of,
    twins_of,
)
from planner.search.few_gpus.draft_moves import fill_moves, placement_moves, split_moves
from planner.search.few_gpus.exact_fill import FirstFills
from planner.search.few_gpus.exact_placement import FirstPlacements
from planner.search.few_gpus.exact_pricing import ExactPrices, Priced
from planner.search.fill import Counts, Filling, Option, Structure
from planner.search.findings import NEAR, Findings
from planner.search.neighbourhood import adjacent, options, packs, structures

STARTS = 24  # of the plans that other stages found
FRESH = 20  # bags of one template between two bags that are taken
PROMISING = 1.25  # a bag whose first plan is slower than the best by more is left
TRIED = 3  # first fills of a placed bag that are priced
POOL = 16  # structures that may take the room of others
PER_DEMAND = 2  # of them, of those that need the same GPUs
CLOSE = 1.05  # of the first plans of a bag, those that are slower than the best by less descend too
HOPEFUL = 1.15  # a first plan that is slower than the best by more descends last
WORTHY = 1.1  # a plan that is slower than the best by more keeps its nodes
SHAKEN = 10  # bags that are filled and placed at random in the end
MOST_SHAKES = 4  # random steps
MOST_IN_VAIN = 500  # bags that are visited, however small the budget, until a plan is found
STALE = 300  # random plans in a row that were seen before, after which the search ends

Value = tuple[int, float]  # as `Findings.rank`
WORST: Value = (1, math.inf)


class ExactSearch:
    """One search over few GPUs: what it knows of plans and bags."""

    def __init__(self, judge: Judge, findings: Findings) -> None:
        """Prepare.

        Args:
            judge: settles plans.
            findings: takes candidates, and holds the request.
        """
        self._judge, self._findings = judge, findings
        self._late: Callable[[], bool] = lambda: False
        self._budget = 0.0
        self._request = findings.request
        workload, composition, profile = judge.workload, judge.composition, judge.profile
        self._prices = ExactPrices(workload, composition, profile)
        self._choices = options(composition, workload.model, profile)
        self._ways: dict[Option, tuple[Way, ...]] = {
            option: tuple(
                (v.recompute, v.ep, v.etp)
                for v in variants_of(workload, composition, profile, option, self._request.allow_ep)
            )
            for option in self._choices
        }
        self._sizes = sizes = sorted(
            {
                b
                for kind in composition.gpu_types
                for b in profile.micro_batches(kind)
                if b <= workload.global_batch
            }
        )
        # where one node is enough, how many hold a layer is never asked
        self._layers = workload.model.layers if self._request.min_holders > 1 else 0
        self._placements = FirstPlacements(workload.model, composition, self._request.min_holders)
        self._fills = FirstFills(workload, self._prices, self._ways, sizes)
        self._room = room_of(composition)
        self._twins = twins_of(composition)
        self._gpu_s: dict[Structure, float] = {}  # GPU seconds of a batch, gradients apart
        self._singles = self._every_single()
        self._seen: set[Drafts] = set()
        self._best: dict[Counts, tuple[Value, Drafts]] = {}  # plan of each bag
        self._visited: set[Counts] = set()
        self._left: dict[Counts, None] = {}  # visited bags that did not look promising
        self._later: list[tuple[Value, Drafts]] = []  # first plans that did not look hopeful
        self._promising = PROMISING
        self._heap: list[tuple[Value, Counts]] = []

    def run(self, late: Callable[[], bool], budget: float) -> bool:
        """Go on searching; whether plans were found and nothing is left to look at.

        Args:
            late: whether the time is up.
            budget: evaluations in all, those of other stages included.
        """
        self._late, self._budget = late, budget
        ranked = sorted(self._findings.found, key=self._findings.rank)
        for candidate in ranked[:STARTS]:
            self._improve(drafts_of(candidate.plan, self._judge.composition))
        while not self._over():
            fresh = tuple(islice(self._singles, FRESH))
            self._visit_all(fresh)
            if not fresh and not self._heap:
                break
            self._expand()
        self._later.sort()
        while self._later and not self._over():
            value, filled = self._later.pop(0)
            self._descend(filled, value)
        while self._left and not self._over():
            self._promising *= PROMISING
            self._visit_all(tuple(self._left))
            while self._heap and not self._over():
                self._expand()
        self._shake()
        return bool(self._best) and not self._over()

    def _shake(self) -> None:
        """Descend again from the best bags, filled and placed at random."""
        random = Random(self._request.seed)
        stale = 0
        while self._best and stale < STALE and not self._over():
            ranked = sorted(self._best.values())[:SHAKEN]
            _, drafts = ranked[random.randrange(len(ranked))]
            for _ in range(random.randrange(1, MOST_SHAKES + 1)):
                steps = list(self._every_step(drafts)) or [drafts]
                drafts = steps[random.randrange(len(steps))]
            stale = 0 if self._improve(drafts) else stale + 1

    def _every_step(self, drafts: Drafts) -> Iterator[Drafts]:
        yield from fill_moves(drafts, self._ways, self._sizes)
        yield from placement_moves(drafts, self._judge.composition)
        yield from split_moves(drafts, self._ways, self._sizes)

    def _every_single(self) -> Iterator[Counts]:
        """Every bag of one template, shallow ones first."""
        for structure in structures(self._choices, self._request.deepest, self._room):
            replicas = 1
            while packs(((structure, replicas),), self._room):
                yield ((structure, replicas),)
                replicas += 1

    def _expand(self) -> None:
        """Visit every bag one step from the best one that was not taken yet."""
        if not self._heap:
            return
        _, counts = heappop(self._heap)
        bags = adjacent(counts, self._choices, self._pool(), self._request.deepest, self._room)
        self._visit_all(
            bag
            for bag in bags
            if bag not in self._visited and len(bag) <= self._request.max_templates
        )

    def _visit_all(self, bags: Iterable[Counts]) -> None:
        for bag in bags:
            if self._over():
                return
            self._visit(bag)

    def _over(self) -> bool:
        if self._findings.best is None and self._findings.nearest is None:
            return len(self._visited) >= MOST_IN_VAIN and self._late()
        return self._late() or self._findings.evaluations >= self._budget

    def _pool(self) -> list[Structure]:
        """For each demand of GPUs the structures that need least GPU time, the best ones first."""
        kept: dict[tuple[str, ...], int] = {}
        found = []
        for structure in sorted(self._gpu_s, key=lambda s: (self._gpu_s[s], s)):
            demand = tuple(sorted(kind for kind, tp in structure for _ in range(tp)))
            kept[demand] = kept.get(demand, 0) + 1
            if kept[demand] <= PER_DEMAND:
                found.append(structure)
        return found[:POOL]

    # ------------------------------------------------------------------ one bag

    def _visit(self, counts: Counts) -> None:
        """The best plans of a bag that are found from its first fills and placements."""
        self._visited.add(counts)
        self._left.pop(counts, None)
        self._findings.evaluations += 1  # its first fills are priced too, gradients apart
        if not self._fills.fit(counts):
            return
        found = []
        for drafts in self._placements.of(counts):
            for filled in self._first(drafts):
                if self._over():
                    return
                value = self._value(filled, WORST)
                if value is not None:
                    found.append((value, filled))
        found.sort()
        for value, filled in found:
            if value <= (found[0][0][0], found[0][0][1] * CLOSE):
                if self._is_near(value, HOPEFUL):
                    self._descend(filled, value)
                else:
                    self._later.append((value, filled))

    def _first(self, drafts: Drafts) -> list[Drafts]:
        """The fastest first fills, gradients apart."""
        found = []
        for filled in self._fills.of(drafts):
            floor = self._prices.floor(filled)
            if floor is not None:
                found.append((floor.seconds, canonical_drafts(filled, self._twins)))
        found.sort()
        if found and len(drafts) == 1:
            structure, replicas = drafts[0].structure, len(drafts[0].where)
            gpu_s = found[0][0] * replicas * sum(tp for _, tp in structure)
            self._gpu_s[structure] = min(self._gpu_s.get(structure, math.inf), gpu_s)
        kept = [filled for seconds, filled in found[:TRIED] if self._is_promising(seconds, filled)]
        if found and not kept:
            self._left[counts_of_drafts(drafts)] = None
        return kept

    def _is_promising(self, floor_s: float, drafts: Drafts) -> bool:
        """Whether that first fill may lead to a best plan."""
        best = self._findings.best
        if best is None or self._request.objective != "throughput":
            return True
        reach, seconds = self._findings.rank(best)
        own, _ = self._findings.rank_of(holders_of(drafts, self._layers), 0.0)
        return own < reach or floor_s < seconds * self._promising

    # ------------------------------------------------------------------ one plan

    def _improve(self, drafts: Drafts) -> bool:
        """Descend from a plan, unless it was seen before or does not fit."""
        if self._over():
            return False
        drafts = canonical_drafts(drafts, self._twins)
        value = self._value(drafts, WORST)
        if value is not None:
            self._descend(drafts, value)
        return value is not None

    def _descend(self, drafts: Drafts, value: Value) -> None:
        """Take every step that helps, until none does; nodes are changed in good plans only."""
        while True:
            for step in self._steps(drafts, value):
                if self._over():
                    return
                moved = canonical_drafts(step, self._twins)
                found = self._value(moved, value)
                if found is not None:
                    drafts, value = moved, found
                    break
            else:
                return

    def _is_near(self, value: Value, factor: float) -> bool:
        """Whether a plan is as good as the best up to that factor."""
        best = self._findings.best
        if best is None:
            return True
        reach, objective = self._findings.rank(best)
        return value <= (reach, objective * factor)

    def _steps(self, drafts: Drafts, value: Value) -> Iterator[Drafts]:
        yield from fill_moves(drafts, self._ways, self._sizes)
        if self._is_near(value, WORTHY):
            yield from placement_moves(drafts, self._judge.composition)
            yield from split_moves(drafts, self._ways, self._sizes)

    def _value(self, drafts: Drafts, limit: Value) -> Value | None:
        """How good a plan is; None if it was seen, does not fit, or is no better than that."""
        if drafts in self._seen:
            return None
        self._seen.add(drafts)
        if len(drafts) > self._request.max_templates:
            return None
        holders = holders_of(drafts, self._layers)
        reach, _ = self._findings.rank_of(holders, 0.0)
        if reach > limit[0]:
            return None
        weight = self._weight(drafts)
        if weight == math.inf and not self._is_nearer(drafts):
            return None
        limit_s = math.inf
        if reach == limit[0] and weight < math.inf:
            limit_s = limit[1] / weight
        self._findings.evaluations += 1
        priced = self._prices.priced(drafts, limit_s)
        if priced is None:
            return None
        if weight == math.inf:
            self._offer(drafts, priced)
            return None
        value = (reach, priced.seconds * weight)
        counts = counts_of_drafts(drafts)
        if counts not in self._best or value < self._best[counts][0]:
            self._best[counts] = (value, drafts)
            heappush(self._heap, (value, counts))
        if value < self._limit():
            self._offer(drafts, priced)
        return value

    def _limit(self) -> Value:
        """What a plan must be below to be offered: the best, or near it where bytes count too."""
        best = self._findings.best
        if best is None:
            return WORST
        reach, objective = self._findings.rank(best)
        return reach, objective * (1 if self._request.current is None else NEAR)

    def _weight(self, drafts: Drafts) -> float:
        """What a second of the plan costs: 1, or the price of its nodes; infinite above a limit."""
        request = self._request
        if request.objective != "cost" and request.max_price is None:
            return 1.0
        per_hour = self._per_hour(drafts)
        if per_hour == math.inf:
            return math.inf
        if request.max_price is not None and per_hour > request.max_price:
            return math.inf
        return minimised_price(per_hour) if request.objective == "cost" else 1.0

    def _per_hour(self, drafts: Drafts) -> float:
        """Money per hour of the nodes that a plan uses; infinite if nobody said."""
        used = {node for draft in drafts for where in draft.where for node in where}
        prices = [self._judge.composition.nodes[node].price for node in used]
        return math.inf if None in prices else sum(price or 0.0 for price in prices)

    def _is_nearer(self, drafts: Drafts) -> bool:
        """Whether a plan beyond the limit of money is cheaper than all of them so far."""
        nearest = self._findings.nearest
        if nearest is None:
            return True
        known = plan_price(nearest.plan, self._judge.composition)
        return known is None or self._per_hour(drafts) < known

    def _offer(self, drafts: Drafts, priced: Priced) -> None:
        """Have the evaluator say what the plan costs."""
        recipe = tuple(
            (
                draft.structure,
                len(draft.where),
                Filling(draft.layers, priced.lanes[first], draft.ways),
            )
            for draft, first in zip(drafts, _firsts(drafts), strict=True)
        )
        plan = plan_of(drafts, priced.shares, self._judge.composition)
        self._findings.offer(self._judge.priced(recipe, plan))


def _firsts(drafts: Drafts) -> list[int]:
    """Index of the first replica of each template in the plan."""
    firsts, count = [], 0
    for draft in drafts:
        firsts.append(count)
        count += len(draft.where)
    return firsts
