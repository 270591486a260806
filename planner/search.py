"""Find the best plan for a composition, and say how it was found.

Enumerate every template of small depth, combine templates to whole plans, improve by local search.
Then, with a current plan, take among plans within half a per cent the one that moves fewest bytes.
Candidates are compared by (nodes that hold every piece, up to the number asked; iteration seconds).
Invariants: the same request and seed give the same plan unless seconds cut the search short; the
answer is never slower than the current plan while that still fits (unless it puts every piece on
more of the nodes that were asked for).
Source: design, section 2 (anytime planner), without policy, bound and column generation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from planner.cost import Price, price
from planner.errors import Infeasible, UnprofiledConfiguration
from planner.fill import Counts, Filling, FillTable, Lane, Structure, share
from planner.infeasible import why_infeasible
from planner.movement import bytes_to_move
from planner.neighbourhood import canonical, neighbour, options, packs, structures
from planner.placement import holders_by_layer, place, room_of
from planner.plan import FilledTemplate, Plan, Stage, faults
from planner.profile import Profile
from planner.request import DEFAULT_EVALUATIONS, PlanAnswer, PlanRequest, SearchStage
from planner.simulation import simulate_price

__all__ = ["PlanAnswer", "PlanRequest", "search"]

NEAR = 1.005  # plans within half a per cent count as equally fast
ENUMERATE_SHARE = 0.3  # of the budget of evaluations
COMBINE_SHARE = 0.7  # up to here; the rest is local search
PER_DEMAND = 3  # templates kept for combining, of those that need the same GPUs
ELITES = 6  # plans that the local search starts from
FINALISTS = 32  # plans that are placed again to move fewer bytes
STALE = 200  # steps in a row that price no new plan, after which the local search ends


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A priced plan; `fillings` is None for the current plan, whose fill stays as it is."""

    counts: Counts
    plan: Plan
    price: Price
    holders: int
    fillings: tuple[Filling, ...] | None


def search(request: PlanRequest, profile: Profile) -> PlanAnswer:
    """The best plan found within the budget.

    Raises:
        Infeasible: no plan fits; the message names the term that binds, and by how much.
        UnprofiledConfiguration: the profile speaks of another workload.
    """
    return _Search(request, profile).run()


class _Search:
    """One search: its budget, what it has seen, and the best so far."""

    def __init__(self, request: PlanRequest, profile: Profile) -> None:
        profile.require(request.workload)
        self._started_s = time.perf_counter()
        self._request = request
        self._budget = request.budget_evaluations or DEFAULT_EVALUATIONS
        self._profile = profile
        known = tuple(n for n in request.composition.nodes if n.gpu_type in profile.types)
        self._composition = replace(request.composition, nodes=known)
        self._table = FillTable(request.workload, self._composition, profile)
        self._choices = options(self._composition, request.workload.model, profile)
        self._room = room_of(self._composition)
        self._least_s = self._least_optimizer_s()
        self._seen: set[Counts] = set()
        self._found: list[_Candidate] = []
        self._best: _Candidate | None = None
        self._evaluations = 0
        self._stages: list[SearchStage] = []

    def run(self) -> PlanAnswer:
        """All stages of the search, one after the other."""
        current = self._current()
        pool = self._enumerate()
        self._record("enumerate")
        self._combine(pool)
        self._record("combine")
        self._improve(pool)
        self._record("local search")
        if self._best is None:
            raise Infeasible(why_infeasible(self._request, self._profile))
        chosen = self._best if self._request.current is None else self._fewest_bytes(current)
        return self._answer(chosen)

    # ------------------------------------------------------------------ budget and comparison

    def _over(self, evaluations: float) -> bool:
        if self._best is None:  # an answer first, however small the budget
            return False
        budget_s = self._request.budget_s
        late = budget_s is not None and time.perf_counter() - self._started_s >= budget_s
        return late or self._evaluations >= evaluations

    def _record(self, name: str) -> None:
        samples = self._best.price.throughput_samples_s if self._best else 0.0
        self._stages.append(SearchStage(name, self._evaluations, samples))

    def _rank(self, holders: int, iteration_s: float) -> tuple[int, float]:
        return -min(holders, self._request.min_holders), iteration_s

    def _rank_of(self, candidate: _Candidate) -> tuple[int, float]:
        return self._rank(candidate.holders, candidate.price.iteration_s)

    def _least_optimizer_s(self) -> float:
        """An optimizer step that no rank of any plan beats."""
        nodes = self._composition.nodes
        steps = (self._profile.optimizer_s(n.gpu_type, 0) / n.speed_factor for n in nodes)
        return min(steps, default=0.0)

    def _hopeless(self, counts: Counts) -> bool:
        """Whether even the most optimistic price of these templates loses by half a per cent."""
        if self._best is None:
            return False
        replicas = sum(n for _, n in counts)
        holders, best_s = self._rank_of(self._best)
        reach, _ = self._rank(min(replicas, len(self._composition.nodes)), 0.0)
        if reach < holders:  # it may live on more nodes, whatever it costs
            return False
        return reach > holders or not self._table.reaches(counts, best_s * NEAR - self._least_s)

    # ------------------------------------------------------------------ one plan

    def _try(self, counts: Counts) -> _Candidate | None:
        """Price a plan, unless it was seen, does not fit, or cannot win."""
        if not counts or counts in self._seen:
            return None
        self._seen.add(counts)
        if len(counts) > self._request.max_templates or not packs(counts, self._room):
            return None
        self._evaluations += 1
        if self._hopeless(counts):
            return None
        fillings = self._table.choose(counts)
        if fillings is None:
            return None
        candidate = self._settle(counts, fillings, None)
        if candidate is None:
            return None
        self._found.append(candidate)
        if self._best is None or self._rank_of(candidate) < self._rank_of(self._best):
            self._best = candidate
        return candidate

    def _settle(
        self, counts: Counts, fillings: tuple[Filling, ...], current: Plan | None
    ) -> _Candidate | None:
        """Place filled templates, share the batch by what the placement gives, and price."""
        workload = self._request.workload
        lanes = [f.lane for f, (_, n) in zip(fillings, counts, strict=True) for _ in range(n)]
        shares = share(workload.global_batch, lanes)
        if shares is None:
            return None
        templates = _filled(counts, fillings, shares, self._request.workload.recompute)
        where = place(
            workload.model, templates, self._composition, self._request.min_holders, current
        )
        if where is None:
            return None
        plan = Plan(templates, where)
        priced = price(plan, workload, self._composition, self._profile)
        real = [
            Lane(lane.micro_batch, max(times), sum(times), lane.most)
            for lane, replica in zip(lanes, priced.replicas, strict=True)
            for times in [[stage.time_s for stage in replica.stages]]
        ]
        again = share(workload.global_batch, real)
        if again is not None and again != shares:
            filled = _filled(counts, fillings, again, self._request.workload.recompute)
            plan = Plan(filled, where)
            priced = price(plan, workload, self._composition, self._profile)
        return _Candidate(counts, plan, priced, holders_by_layer(plan), fillings)

    def _current(self) -> _Candidate | None:
        """The current plan as a candidate, if it still fits the composition and is profiled."""
        plan, workload = self._request.current, self._request.workload
        if plan is None or faults(plan, workload, self._composition):
            return None
        try:
            priced = price(plan, workload, self._composition, self._profile)
        except UnprofiledConfiguration:
            return None
        usable = all(
            stage.peak_memory_bytes <= self._profile.gpu_type(kind.gpu_type).usable_bytes
            for replica in priced.replicas
            for stage, kind in zip(
                replica.stages, plan.templates[replica.template].stages, strict=True
            )
        )
        if not usable:
            return None
        candidate = _Candidate(_counts(plan), plan, priced, holders_by_layer(plan), None)
        self._best = candidate
        self._found.append(candidate)
        return candidate

    # ------------------------------------------------------------------ stages of the search

    def _enumerate(self) -> list[Structure]:
        """Every start template alone, with every number of replicas; returns those that work."""
        limit = ENUMERATE_SHARE * self._budget
        batch = self._request.workload.global_batch
        pool = []
        for structure in structures(self._choices, self._request.deepest, self._room):
            if self._over(limit):
                break
            if not self._table.fillings(structure):
                continue
            pool.append(structure)
            for replicas in range(1, batch + 1):
                counts = ((structure, replicas),)
                if self._over(limit) or not packs(counts, self._room):
                    break
                self._try(counts)
        return pool

    def _combine(self, pool: list[Structure]) -> None:
        """Bags of the templates that train most samples in the best time, most per GPU first."""
        if self._best is None:
            return
        limit_s = max(r.pipeline_s for r in self._best.price.replicas) * NEAR
        by_demand: dict[tuple[str, ...], list[Structure]] = {}
        for structure in pool:
            if self._table.samples_within(structure, limit_s):
                demand = tuple(sorted(kind for kind, tp in structure for _ in range(tp)))
                by_demand.setdefault(demand, []).append(structure)

        def worth(structure: Structure) -> tuple[float, Structure]:
            samples = self._table.samples_within(structure, limit_s)
            return -samples / sum(tp for _, tp in structure), structure

        kept = [s for rows in by_demand.values() for s in sorted(rows, key=worth)[:PER_DEMAND]]
        limit = COMBINE_SHARE * self._budget
        for counts in self._bags(sorted(kept, key=worth), 0, ()):
            if self._over(limit):
                return
            self._try(counts)

    def _bags(self, kept: list[Structure], first: int, chosen: Counts) -> Iterator[Counts]:
        """Every bag of at most `max_templates` templates that packs, fuller ones first."""
        if len(chosen) == self._request.max_templates:
            return
        for index in range(first, len(kept)):
            most = 0
            while packs((*chosen, (kept[index], most + 1)), self._room):
                most += 1
            for replicas in range(most, 0, -1):
                bag = (*chosen, (kept[index], replicas))
                yield from self._bags(kept, index + 1, bag)
                yield canonical(bag)

    def _improve(self, pool: list[Structure]) -> None:
        """Steps from the best plans so far, and from the current one."""
        if self._best is None:
            return
        random = Random(self._request.seed)
        elites = sorted(self._found, key=self._rank_of)[:ELITES]
        starts = [candidate.counts for candidate in elites]
        if self._request.current is not None:
            starts.append(_counts(self._request.current))
        stale = 0
        while stale < STALE and not self._over(self._budget):
            start = starts[random.randrange(len(starts))]
            step = neighbour(start, self._choices, pool, self._request.deepest, random)
            for _ in range(random.randrange(3)):
                if step:
                    step = neighbour(step, self._choices, pool, self._request.deepest, random)
            before = self._evaluations
            found = self._try(step)
            stale = 0 if self._evaluations > before else stale + 1
            if found is not None:
                elites = sorted({c.counts: c for c in (*elites, found)}.values(), key=self._rank_of)
                elites = elites[:ELITES]
                starts = [candidate.counts for candidate in elites]

    # ------------------------------------------------------------------ the answer

    def _fewest_bytes(self, current: _Candidate | None) -> _Candidate:
        """Of the plans within half a per cent, the one that moves fewest bytes."""
        assert self._best is not None
        assert self._request.current is not None
        holders, best_s = self._rank_of(self._best)
        limit_s = best_s * NEAR
        if current is not None and self._rank_of(current)[0] == holders:
            limit_s = min(limit_s, current.price.iteration_s)
        near = [c for c in self._found if self._rank_of(c) <= (holders, limit_s)]
        near = sorted(near, key=self._rank_of)[:FINALISTS]
        for candidate in tuple(near):
            if candidate.fillings is not None:
                kept = self._settle(candidate.counts, candidate.fillings, self._request.current)
                if kept is not None and self._rank_of(kept) <= (holders, limit_s):
                    near.append(kept)
        model, before = self._request.workload.model, self._request.current
        return min(near, key=lambda c: (bytes_to_move(model, before, c.plan), c.price.iteration_s))

    def _answer(self, chosen: _Candidate) -> PlanAnswer:
        request, plan = self._request, chosen.plan
        used: dict[str, int] = {}
        for placed in plan.placement:
            used[placed.node] = used.get(placed.node, 0) + len(placed.gpus)
        left = ((n.name, n.gpus - used.get(n.name, 0)) for n in request.composition.nodes)
        moved = None
        if request.current is not None:
            moved = bytes_to_move(request.workload.model, request.current, plan)
        return PlanAnswer(
            plan,
            chosen.price,
            simulate_price(chosen.price).step_s,
            chosen.holders,
            tuple(self._stages),
            time.perf_counter() - self._started_s,
            moved,
            tuple((name, count) for name, count in left if count),
            tuple(self._notes(chosen)),
        )

    def _notes(self, chosen: _Candidate) -> Iterator[str]:
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


def _counts(plan: Plan) -> Counts:
    return canonical(
        (tuple((stage.gpu_type, stage.tp) for stage in template.stages), template.replicas)
        for template in plan.templates
    )


def _filled(
    counts: Counts, fillings: tuple[Filling, ...], shares: tuple[int, ...], recompute: str
) -> tuple[FilledTemplate, ...]:
    templates = []
    first = 0
    for (structure, replicas), filling in zip(counts, fillings, strict=True):
        stages = tuple(
            Stage(gpu_type, tp, layers, recompute)
            for (gpu_type, tp), layers in zip(structure, filling.layers, strict=True)
        )
        templates.append(
            FilledTemplate(stages, filling.lane.micro_batch, shares[first : first + replicas])
        )
        first += replicas
    return tuple(templates)
