"""A plan that a search found: placed, its batch shared, and priced by the one evaluator.

Every step of the search hands its templates over here, so that all are judged alike.
Invariant: a candidate fits in memory and in the limits on GPUs, trains exactly B samples, and its
price is `planner.cost.evaluate`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import UNLIMITED, GpuLimits
from planner.cost.batch_split import Lane, share
from planner.cost.evaluate import (
    PlanCost,
    ReplicaCost,
    cost_of,
    costs_of_stages,
    replica_costs,
    whole_cost,
)
from planner.cost.memory import usable_bytes
from planner.errors import UnprofiledConfiguration
from planner.model.workload import Workload
from planner.placement.node_classes import at_any_speed, by_class, template_by_class
from planner.placement.place import Rule, holders_by_layer, place
from planner.plans.canonical import joined
from planner.plans.hosts import plan_on_nodes, with_hosts
from planner.plans.plan import FilledTemplate, Plan, Stage, faults
from planner.plans.ranks import RankMap
from planner.profiles.profile import Profile
from planner.search.fill import Filling, Structure

BOTH_WAYS_GPUS = 1024  # on more, a placement takes too long to try another
EVERYWHERE_GPUS = 64  # on more, a plan that spreads no experts stands on the classes of its price

# The templates of a plan: stages, replicas, and their filling.
UnplacedCandidate = tuple[tuple[Structure, int, Filling], ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A priced plan.

    Attributes:
        plan: placed.
        price: of the plan.
        holders: on how many nodes every piece lives at least.
        unplaced: what it was made from; None for the current plan, whose fill stays as it is.
    """

    plan: Plan
    cost: PlanCost
    holders: int
    unplaced: UnplacedCandidate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Places and prices plans of one workload on one composition, each host a node of it."""

    workload: Workload
    composition: Composition
    profile: Profile
    min_holders: int = 1
    max_gpus: GpuLimits = UNLIMITED
    _by_class: Composition = field(init=False, repr=False, compare=False)
    _gpus: int = field(init=False, repr=False, compare=False)  # that a plan may use

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_class", by_class(self.composition))
        object.__setattr__(self, "_gpus", self.max_gpus.allowed(self.composition))

    def placed(
        self, unplaced: UnplacedCandidate, current: Plan | None = None
    ) -> Iterator[Candidate]:
        """Place filled templates, share the batch by what the placement gives, and price.

        With a current plan, pieces stay where they are as far as possible.
        """
        workload = self.workload
        unplaced = tuple(sorted(unplaced, key=stages_first))
        lanes = [filling.lane for _, n, filling in unplaced for _ in range(n)]
        shares = share(workload.global_batch, lanes)
        if shares is None:
            return
        templates = _filled(unplaced, shares, workload.recompute)
        rules = self._rules(templates, unplaced)
        tiled = any(template.is_tiled for template in templates)
        is_everywhere = self._gpus <= (BOTH_WAYS_GPUS if tiled else EVERYWHERE_GPUS)
        is_found = False
        for rows, nodes in self._sites(unplaced, templates, current):
            if is_found and not is_everywhere:
                break
            for rule in rules:
                where = place(workload.model, rows, nodes, self.min_holders, current, rule=rule)
                if where is None:
                    continue
                one = self.priced(unplaced, Plan(templates, where))
                if one is not None:
                    is_found = True
                    yield one

    def _rules(
        self, templates: tuple[FilledTemplate, ...], unplaced: UnplacedCandidate
    ) -> tuple[Rule, ...]:
        """The rules of placement to try; the best placement is taken.

        Above `BOTH_WAYS_GPUS` only the estimator's rule is tried, to save time.
        """
        if self._gpus > BOTH_WAYS_GPUS and self.min_holders == 1:
            if any(template.is_tiled for template in templates):
                return ("by stage",)
            if self.workload.model.experts is None:
                by_stage = any(filling.by_stage for _, _, filling in unplaced)
                return ("by stage",) if by_stage else ("by replica",)
        return all_rules(templates)

    def _sites(
        self,
        unplaced: UnplacedCandidate,
        templates: tuple[FilledTemplate, ...],
        current: Plan | None,
    ) -> Iterator[tuple[tuple[FilledTemplate, ...], Composition]]:
        """Stages and node classes: first the classes that the templates were priced for."""
        if current is None and all(filling.classes for _, _, filling in unplaced):
            rows = tuple(
                template_by_class(template, filling.classes)
                for template, (_, _, filling) in zip(templates, unplaced, strict=True)
            )
            any_speed = any(filling.any_speed for _, _, filling in unplaced)
            yield rows, at_any_speed(self.composition) if any_speed else self._by_class
        yield templates, self.composition

    def priced(self, unplaced: UnplacedCandidate, plan: Plan) -> Candidate | None:
        """Evaluate a placed plan, its batch shared again by what the placement gives.

        Templates that turn out alike are one; with ZeRO they then share what they hold.

        None if the memory is too small, or a limit on GPUs.
        """
        if not self.max_gpus.allows(plan.gpus_by_type):
            return None
        asked = (self.workload, self.composition, self.profile)
        plan = joined(plan.with_zero(self.workload.zero))
        ranks = RankMap.of(plan)
        replicas = replica_costs(plan, ranks, *asked)
        lanes = [filling.lane for _, n, filling in unplaced for _ in range(n)]
        real = [
            Lane(lane.micro_batch, max(times), sum(times), lane.most)
            for lane, replica in zip(lanes, replicas, strict=True)
            for times in [replica.stage_s]
        ]
        again = share(self.workload.global_batch, real)
        shares = tuple(m for template in plan.templates for m in template.micro_batches)
        if again is not None and again != shares:
            plan, before = _shared(plan, again), _in_flight(ranks)
            ranks = RankMap.of(plan)
            if _in_flight(ranks) == before:  # no stage takes longer or more
                replicas = costs_of_stages(ranks, [replica.stages for replica in replicas])
            else:
                replicas = replica_costs(plan, ranks, *asked)
        if not self._fits(plan, replicas):
            return None
        return Candidate(
            plan,
            whole_cost(plan, ranks, replicas, *asked),
            self.holders(plan),
            unplaced,
        )

    def as_it_is(self, plan: Plan) -> Candidate | None:
        """A plan that runs already, if it still fits composition and limits and is profiled.

        One with another stage of ZeRO is none that was asked for.
        """
        if plan.zero != self.workload.zero or faults(plan, self.workload, self.composition):
            return None
        if not self.max_gpus.allows(plan.gpus_by_type):
            return None
        try:
            priced = cost_of(plan, self.workload, self.composition, self.profile)
        except UnprofiledConfiguration:
            return None
        if not self._fits(plan, priced.replicas):
            return None
        return Candidate(plan, priced, self.holders(plan), None)

    def holders(self, plan: Plan) -> int:
        """On how many nodes every piece lives at least; hosts of one node count once."""
        return holders_by_layer(self.workload.model, plan_on_nodes(plan, self.composition))

    def _fits(self, plan: Plan, replicas: tuple[ReplicaCost, ...]) -> bool:
        alike = {(replica.template, id(replica.stages)): replica for replica in replicas}
        return all(
            stage.peak_memory_bytes
            <= usable_bytes(self.workload, self.profile.gpu_type(kind.gpu_type))
            for replica in alike.values()
            for stage, kind in zip(
                replica.stages, plan.templates[replica.template].stages, strict=True
            )
        )


def all_rules(templates: Sequence[FilledTemplate]) -> tuple[Rule, ...]:
    """How these templates may be placed."""
    tiled = [template.is_tiled for template in templates]
    if any(tiled) and not all(tiled):
        return "by replica", "by stage", "by tiling"
    return "by replica", "by stage"


def best_placed(
    templates: tuple[FilledTemplate, ...],
    workload: Workload,
    composition: Composition,
    profile: Profile,
) -> Plan | None:
    """Filled templates on nodes, by the rule with the best price; None if they do not fit.

    What has faults has no price, and is placed by the first rule.

    Raises:
        UnprofiledConfiguration: the profile lacks a key of the templates.
    """
    hosted = with_hosts(composition, profile)
    placements = (
        place(workload.model, templates, hosted, rule=rule) for rule in all_rules(templates)
    )
    found = [Plan(templates, where) for where in placements if where is not None]
    plans = [plan_on_nodes(plan.with_zero(workload.zero), hosted) for plan in found]
    if plans and faults(plans[0], workload, composition):
        return plans[0]
    return min(
        plans,
        key=lambda plan: cost_of(plan, workload, composition, profile).iteration_s,
        default=None,
    )


def _in_flight(ranks: RankMap) -> list[int]:
    """The most micro-batches that any stage of each replica keeps at once."""
    return [min(len(one.template.stages), one.rounds) for one in ranks.pipelines]


def stages_first(row: tuple[Structure, int, Filling]) -> tuple[object, ...]:
    """Key that makes templates neighbours that differ in their nodes only."""
    structure, replicas, filling = row
    size = filling.lane.micro_batch
    return structure, filling.layers, size, filling.stage_configs, replicas, filling.classes


def _shared(plan: Plan, shares: tuple[int, ...]) -> Plan:
    """The plan with other micro-batches of its replicas."""
    left = iter(shares)
    templates = tuple(
        replace(template, micro_batches=tuple(islice(left, template.replicas)))
        for template in plan.templates
    )
    return replace(plan, templates=templates)


def _filled(
    unplaced: UnplacedCandidate, shares: tuple[int, ...], recompute: str
) -> tuple[FilledTemplate, ...]:
    templates = []
    first = 0
    for structure, replicas, filling in unplaced:
        stage_configs = filling.stage_configs or ((recompute, 1, 0),) * len(structure)
        stages = tuple(
            Stage(gpu_type=gpu_type, tp=tp, layers=layers, recompute=way[0], ep=way[1], etp=way[2])
            for (gpu_type, tp), layers, way in zip(
                structure, filling.layers, stage_configs, strict=True
            )
        )
        templates.append(
            FilledTemplate(stages, filling.lane.micro_batch, shares[first : first + replicas])
        )
        first += replicas
    return tuple(templates)
