"""Search a small composition with every plan placed and priced by the one evaluator.

Enumerate every template of small depth, combine templates to whole plans, improve by local search.
On a few nodes the placement decides, which the kernel only estimates.
Invariant: the same request and seed give the same plan unless seconds cut the search short.
Source: design, section 2 (local search on whole plans).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from planner.placement.place import room_of
from planner.search.candidate import Candidate, Judge
from planner.search.fill import Counts, FillTable, Structure
from planner.search.findings import NEAR, Findings
from planner.search.neighbourhood import canonical, counts_of, neighbour, options, packs, structures

ENUMERATE_SHARE = 0.3  # of the budget of evaluations
COMBINE_SHARE = 0.7  # up to here; the rest is local search
PER_DEMAND = 3  # templates kept for combining, of those that need the same GPUs
ELITES = 6  # plans that the local search starts from
STALE = 200  # steps in a row that price no new plan, after which the local search ends


class SmallSearch:
    """Three stages that share what they know of templates."""

    def __init__(
        self, judge: Judge, findings: Findings, late: Callable[[], bool], budget: int
    ) -> None:
        """Prepare.

        Args:
            judge: settles plans.
            findings: takes candidates, and holds the request.
            late: whether the time is up.
            budget: evaluations for all three stages.
        """
        self._judge, self._findings, self._late = judge, findings, late
        self._budget = budget
        self._request = findings.request
        workload = judge.workload
        self._table = FillTable(workload, judge.composition, judge.profile)
        self._choices = options(judge.composition, workload.model, judge.profile)
        self._room = room_of(judge.composition)
        self._least_s = self._least_optimizer_s()
        self._seen: set[Counts] = set()
        self._counts: dict[Counts, Candidate] = {}
        self._pool: list[Structure] = []

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        """(name, stage) in their order."""
        return (
            ("enumerate", self._enumerate),
            ("combine", self._combine),
            ("local search", self._improve),
        )

    def _over(self, evaluations: float) -> bool:
        if self._findings.best is None:  # an answer first, however small the budget
            return False
        return self._late() or self._findings.evaluations >= evaluations

    def _least_optimizer_s(self) -> float:
        """An optimizer step that no rank of any plan beats."""
        nodes, profile = self._judge.composition.nodes, self._judge.profile
        steps = (profile.optimizer_s(n.gpu_type, 0) / n.speed_factor for n in nodes)
        return min(steps, default=0.0)

    def _hopeless(self, counts: Counts) -> bool:
        """Whether even the most optimistic price of these templates loses by half a per cent."""
        best = self._findings.best
        if best is None or self._request.objective != "throughput":
            return False
        replicas = sum(n for _, n in counts)
        holders, best_s = self._findings.rank(best)
        most = min(replicas, len(self._judge.composition.nodes))
        reach, _ = self._findings.rank_of(most, 0.0)
        if reach < holders:  # it may live on more nodes, whatever it costs
            return False
        return reach > holders or not self._table.reaches(counts, best_s * NEAR - self._least_s)

    def _try(self, counts: Counts) -> Candidate | None:
        """Price a plan, unless it was seen, does not fit, or cannot win."""
        if not counts or counts in self._seen:
            return None
        self._seen.add(counts)
        if len(counts) > self._request.max_templates or not packs(counts, self._room):
            return None
        self._findings.evaluations += 1
        if self._hopeless(counts):
            return None
        fillings = self._table.choose(counts)
        if fillings is None:
            return None
        recipe = tuple((s, n, f) for (s, n), f in zip(counts, fillings, strict=True))
        candidate = self._judge.settle(recipe)
        if candidate is not None:
            self._findings.offer(candidate)
            self._counts[counts] = candidate
        return candidate

    def _enumerate(self) -> None:
        """Every start template alone, with every number of replicas."""
        limit = ENUMERATE_SHARE * self._budget
        batch = self._judge.workload.global_batch
        for structure in structures(self._choices, self._request.deepest, self._room):
            if self._over(limit):
                break
            if not self._table.fillings(structure):
                continue
            self._pool.append(structure)
            for replicas in range(1, batch + 1):
                counts = ((structure, replicas),)
                if self._over(limit) or not packs(counts, self._room):
                    break
                self._try(counts)

    def _combine(self) -> None:
        """Bags of the templates that train most samples in the best time, most per GPU first."""
        best = self._findings.best
        if best is None:
            return
        limit_s = max(r.pipeline_s for r in best.price.replicas) * NEAR
        by_demand: dict[tuple[str, ...], list[Structure]] = {}
        for structure in self._pool:
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

    def _improve(self) -> None:
        """Steps from the best plans so far, and from the current one."""
        if self._findings.best is None or not self._pool:
            return
        random = Random(self._request.seed)
        elites = self._elites()
        current = self._request.current
        if current is not None:
            elites.append(counts_of(current))
        stale = 0
        while elites and stale < STALE and not self._over(self._budget):
            start = elites[random.randrange(len(elites))]
            step = neighbour(start, self._choices, self._pool, self._request.deepest, random)
            for _ in range(random.randrange(3)):
                if step:
                    step = neighbour(step, self._choices, self._pool, self._request.deepest, random)
            before = self._findings.evaluations
            found = self._try(step)
            stale = 0 if self._findings.evaluations > before else stale + 1
            if found is not None:
                elites = self._elites()

    def _elites(self) -> list[Counts]:
        ranked = sorted(self._counts, key=lambda c: self._findings.rank(self._counts[c]))
        return ranked[:ELITES]
