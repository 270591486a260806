"""Enumerate every plan of a small composition and keep the best: the oracle of the search engines.

Every bag of templates, every number of replicas, every micro-batch, split, recomputation, tiling,
sharing and placement is met; each that may be the best is priced by
`planner.cost.evaluate.cost_of`, checked for memory and by `planner.plans.plan.check`.  Branches go
only where a proof stands beside:
seconds that no plan of the branch beats (`tests.oracle.floors`), or another plan that costs the
same. It knows neither limits of money or throughput nor stated network cards, and asserts that none
is given.
Invariant: no code is shared with the search engines, so that an error in one shows in the other.
Legend: b micro-batch, M micro-batches of a replica, n replicas of a template, R pipelines of a
plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from planner.cluster.composition import Composition
from planner.cost.evaluate import PlanCost, cost_of
from planner.cost.gradient_sync import sync_seconds
from planner.cost.weight_broadcasts import broadcast_seconds
from planner.placement.place import holders_by_layer
from planner.plans.plan import FilledTemplate, Plan, check
from planner.plans.ranks import RankMap
from planner.profiles.profile import Profile
from planner.request import PlanRequest
from tests.oracle.every_fill import EveryFill
from tests.oracle.every_placement import (
    Option,
    Outline,
    Structure,
    Where,
    every_placement,
    placed_stages,
)
from tests.oracle.every_sharing import Runner, best_sharing
from tests.oracle.floors import Floors, Placed

ROUNDING = 1e-12  # relative; sums of the same seconds in another order


@dataclass(frozen=True, slots=True)
class BestPlan:
    """The best plan of all, its price, and on how many nodes every piece lives at least."""

    plan: Plan
    cost: PlanCost
    holders: int


def brute_force(request: PlanRequest, profile: Profile) -> BestPlan | None:
    """The best plan of all: most holders up to the number asked for, then least seconds.

    None if no plan fits.

    Raises:
        UnprofiledConfiguration: the profile speaks of another workload.
    """
    profile.require(request.workload)
    assert request.objective == "throughput"
    assert (request.max_price, request.min_throughput) == (None, None)
    assert not any(request.composition.nics.values())
    enumeration = _Enumeration(request, profile)
    nodes = len(enumeration.composition.nodes)
    for holders in range(max(1, min(request.min_holders, nodes)), 0, -1):
        found = enumeration.best(holders)
        if found is not None:
            return found
    return None


class _Enumeration:
    """One walk over all plans."""

    def __init__(self, request: PlanRequest, profile: Profile) -> None:
        self._request = request
        self._profile = profile
        known = tuple(n for n in request.composition.nodes if n.gpu_type in profile.types)
        self.composition = replace(request.composition, nodes=known)
        self._options = self._every_option()
        sizes = sorted(
            {
                b
                for gpu_type in self.composition.gpu_types
                for b in profile.micro_batches(gpu_type)
                if b <= request.workload.global_batch
            }
        )
        self._tiled = request.allow_ep and request.workload.model.experts is not None
        self._fills = EveryFill(request.workload, profile, sizes, allow_ep=request.allow_ep)
        self._floors = Floors(request.workload, profile, self.composition, self._fills, sizes)
        self._known_sync_s: dict[tuple[object, ...], float] = {}  # of one placed bag
        self._best: BestPlan | None = None

    def best(self, holders: int) -> BestPlan | None:
        """The fastest plan of which every piece lives on at least that many nodes."""
        self._best = None
        structures = [s for s in self._every_structure() if self._fills_of(s)]
        # plans of one template first, so that slow templates need not be combined
        singles = [((s, n),) for s in structures for n in range(1, self._most_replicas(s) + 1)]
        self._walk(singles, holders)
        quick = [
            s
            for s in structures
            if self._floors.alone_s(s, self._most_replicas(s)) < self._limit_s()
        ]
        several = [bag for bag in self._every_bag(quick) if len(bag) > 1]
        self._walk(several, holders)
        return self._best

    # ------------------------------------------------------------------ templates before their fill

    def _every_option(self) -> tuple[Option, ...]:
        """Every (GPU type, TP degree) that is profiled, cuts the model, and fits on a node."""
        return tuple(
            (gpu_type, tp)
            for gpu_type in self.composition.gpu_types
            for tp in self._profile.tp_degrees(gpu_type)
            if self._request.workload.model.allows_tp(tp)
            and any(n.gpu_type == gpu_type and n.gpus >= tp for n in self.composition.nodes)
        )

    def _every_structure(self) -> Iterator[Structure]:
        """Every sequence of options for which there are GPUs."""
        for depth in range(1, min(self._request.deepest, self.composition.gpus) + 1):
            for structure in product(self._options, repeat=depth):
                if self._most_replicas(structure):
                    yield structure

    def _most_replicas(self, structure: Structure) -> int:
        """As many as there are GPUs for; whether nodes have room is the placement's question."""
        needs = _gpus((structure, 1))
        have = _gpus_of(self.composition)
        return min(have[gpu_type] // count for gpu_type, count in needs.items())

    def _fills_of(self, structure: Structure) -> bool:
        """Whether any number of replicas fits in memory."""
        most = self._most_replicas(structure)
        return any(self._fills.of(structure, n) for n in range(1, most + 1))

    def _every_bag(self, structures: Sequence[Structure]) -> Iterator[tuple[Outline, ...]]:
        """Every bag of at most `max_templates` templates for which there are GPUs."""
        # two templates of equal stages may differ in their fill, and then are no one template
        outlines = [
            (s, n)
            for s in structures
            for n in range(self._most_replicas(s), 0, -1)
            if self._fills.of(s, n)
        ]
        demands = [_gpus(outline) for outline in outlines]

        def walk(
            first: int, left: dict[str, int], bag: tuple[Outline, ...]
        ) -> Iterator[tuple[Outline, ...]]:
            if bag:
                yield bag
            if len(bag) == self._request.max_templates:
                return
            for index in range(first, len(outlines)):
                demand = demands[index]
                if all(left[gpu_type] >= count for gpu_type, count in demand.items()):
                    rest = {k: count - demand.get(k, 0) for k, count in left.items()}
                    yield from walk(index, rest, (*bag, outlines[index]))

        yield from walk(0, _gpus_of(self.composition), ())

    # ------------------------------------------------------------------ whole plans

    def _limit_s(self) -> float:
        """What a plan has to beat."""
        return math.inf if self._best is None else self._best.cost.iteration_s * (1 - ROUNDING)

    def _walk(self, bags: Sequence[tuple[Outline, ...]], holders: int) -> None:
        """Plans of these bags, in the order of the seconds that none of their plans beats."""
        order = sorted((self._floors.of_bag(bag), index) for index, bag in enumerate(bags))
        for floor_s, index in order:
            if floor_s >= self._limit_s():
                return
            bag = bags[index]
            # each pipeline holds every layer on one node, so fewer cannot reach that many holders
            if sum(n for _, n in bag) < holders:
                continue
            for where in every_placement(bag, self.composition, ordered=self._tiled):
                self._of_placement(bag, where, holders)

    def _of_placement(
        self, bag: tuple[Outline, ...], where: tuple[tuple[Where, ...], ...], holders: int
    ) -> None:
        """Every fill of a placed bag that may be the best."""
        batch = self._request.workload.global_batch
        rows = self._floors.placed(bag, where, self._limit_s())
        if not all(rows):
            return
        most = [max(row.samples for row in filled) for filled in rows]

        def walk(index: int, samples: int, chosen: tuple[Placed, ...]) -> None:
            if index == len(rows):
                self._share(chosen, where, holders)
                return
            rest = sum(most[index + 1 :])
            for filled in rows[index]:
                if samples + filled.samples + rest >= batch:
                    walk(index + 1, samples + filled.samples, (*chosen, filled))

        self._known_sync_s.clear()
        walk(0, 0, ())

    def _share(
        self, chosen: tuple[Placed, ...], where: tuple[tuple[Where, ...], ...], holders: int
    ) -> None:
        """Share the batch, such that the last replica ends earliest, and price the plan.

        The sum of gradients and the optimizer step do not depend on M: no other sharing is faster.
        """
        # Two equal templates without tiling are one template with more replicas.  Without ZeRO it
        # costs the same; with ZeRO its replicas share their state, which is what was asked for.
        kinds = [filled.kind for filled in chosen if not any(s.is_tiled for s in filled.stages)]
        if len(set(kinds)) < len(kinds):
            return
        sync_s = self._sync_s(chosen, where)
        assert max(f.sync_s for f in chosen) <= sync_s * (1 + 1e-9), (chosen, where)
        rest_s = max(f.optimizer_s for f in chosen) + sync_s
        runners = [runner for filled in chosen for runner in filled.runners]
        batch = self._request.workload.global_batch
        shares = best_sharing(batch, runners, self._limit_s() - rest_s)
        if shares is None:
            return
        templates, first = [], 0
        for filled in chosen:
            count = len(filled.runners)
            templates.append(
                FilledTemplate(
                    filled.stages, filled.runners[0].micro_batch, shares[first : first + count]
                )
            )
            first += count
        plan = Plan(tuple(templates), placed_stages(templates, where, self.composition))
        plan = plan.with_zero(self._request.workload.zero)
        if holders_by_layer(self._request.workload.model, plan) >= holders:
            self._price(plan, runners, shares, rest_s)

    def _sync_s(self, chosen: tuple[Placed, ...], where: tuple[tuple[Where, ...], ...]) -> float:
        """Sum of gradients and broadcasts by the evaluator, which asks for layers and tilings."""
        stages = tuple(
            tuple(replace(stage, recompute="none") for stage in filled.stages) for filled in chosen
        )
        key = (stages, where)
        if key not in self._known_sync_s:
            templates = [
                FilledTemplate(row, 1, (1,) * len(filled.runners))
                for row, filled in zip(stages, chosen, strict=True)
            ]
            plan = Plan(tuple(templates), placed_stages(templates, where, self.composition))
            asked = self._request.workload, RankMap.of(plan), self._profile, self.composition.nics
            self._known_sync_s[key] = max(sync_seconds(*asked)) + max(broadcast_seconds(*asked))
        return self._known_sync_s[key]

    def _price(
        self, plan: Plan, runners: Sequence[Runner], shares: Sequence[int], rest_s: float
    ) -> None:
        """Evaluate a plan; it becomes the best if it fits and nothing is faster."""
        workload = self._request.workload
        priced = cost_of(plan, workload, self.composition, self._profile)
        # what was cut was cut by these figures: they must be the evaluator's
        pipelines_s = max(runner.seconds(m) for runner, m in zip(runners, shares, strict=True))
        slowest_s = max(replica.pipeline_s for replica in priced.replicas)
        assert math.isclose(pipelines_s, slowest_s, rel_tol=1e-9), plan
        priced_s = priced.sync_s + priced.optimizer_s + priced.broadcast_s
        assert math.isclose(rest_s, priced_s, rel_tol=1e-9), plan
        if priced.iteration_s < self._limit_s() and self._fits(plan, priced):
            check(plan, workload, self.composition)
            self._best = BestPlan(
                plan, priced, holders_by_layer(self._request.workload.model, plan)
            )

    def _fits(self, plan: Plan, priced: PlanCost) -> bool:
        return all(
            stage_price.peak_memory_bytes <= self._profile.gpu_type(stage.gpu_type).usable_bytes
            for replica in priced.replicas
            for stage, stage_price in zip(
                plan.templates[replica.template].stages, replica.stages, strict=True
            )
        )


def _gpus(outline: Outline) -> dict[str, int]:
    """GPUs of each type that a template takes."""
    structure, replicas = outline
    needs: dict[str, int] = {}
    for gpu_type, tp in structure:
        needs[gpu_type] = needs.get(gpu_type, 0) + tp * replicas
    return needs


def _gpus_of(composition: Composition) -> dict[str, int]:
    have: dict[str, int] = {}
    for node in composition.nodes:
        have[node.gpu_type] = have.get(node.gpu_type, 0) + node.gpus
    return have
