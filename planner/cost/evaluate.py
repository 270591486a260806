"""Cost of an iteration of a placed plan: the one evaluator of Heddle.

Replica: (M - 1) * max(t) + sum(t); plan: the slowest replica + max(g) + the optimizer step +
max(w).
Replicas in lock-step go at the pace of the slowest of them, for as many micro-batches as any has.
`cost_of`, the event simulation and the workers that emulate devices take their seconds from the
same functions here, so that they can be compared.
Source: Heddle, section 5.2.   Legend: t stage seconds, g gradient synchronisation, w broadcasts of
weights (ZeRO 1), M micro-batches of a replica, b micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from planner.cluster.composition import Composition
from planner.cost import formulas
from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.cost.gradient_sync import sync_seconds
from planner.cost.links import EdgeEnd, edge_seconds, sending_stages
from planner.cost.memory import StageMemory, boundary_bytes, slot_of, stage_memory
from planner.cost.stage import StageWork, optimizer_seconds, stage_seconds
from planner.cost.weight_broadcasts import broadcast_seconds
from planner.errors import InvalidPlan
from planner.model.workload import Workload
from planner.plans.hosts import plan_on_hosts, with_hosts
from planner.plans.plan import Plan
from planner.plans.ranks import Pipeline, RankMap
from planner.profiles.profile import Profile

NO_MEMORY = StageMemory(
    weights=0, gradients=0, optimizer=0, activations=0, boundary=0, logits=0, communication=0
)
NO_WORK = StageWork(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage of one replica, for one micro-batch."""

    forward_s: float  # forward pass, half of the TP communication included
    backward_s: float  # backward pass, the other half included
    to_previous_s: float  # one message to or from the stage before; 0 on the first stage
    to_next_s: float  # one message to or from the stage after; 0 on the last
    memory: StageMemory = NO_MEMORY  # on each of its GPUs, by kind
    # the computation and communication that forward and backward consist of
    work: StageWork = NO_WORK

    @property
    def peak_memory_bytes(self) -> int:
        """On each of its GPUs."""
        return self.memory.peak_bytes

    @property
    def p2p_s(self) -> float:
        """Activation and gradient on both edges."""
        edges = (self.to_previous_s, self.to_next_s)
        return sum(formulas.boundary_seconds(message_s) for message_s in edges)

    @property
    def time_s(self) -> float:
        """t: the stage's time for one micro-batch."""
        return self.forward_s + self.backward_s + self.p2p_s

    def slower(self, other: StageCost) -> StageCost:
        """Each part of it as long as on the slower of two replicas."""
        return replace(
            self,
            forward_s=max(self.forward_s, other.forward_s),
            backward_s=max(self.backward_s, other.backward_s),
            to_previous_s=max(self.to_previous_s, other.to_previous_s),
            to_next_s=max(self.to_next_s, other.to_next_s),
        )


class LockStep(NamedTuple):
    """How the replicas of a template go on together, whose tokens visit each other's experts.

    They wait for each other in each pass, forward and backward.
    """

    rounds: int  # R, the most micro-batches of any of them; the others have empty ones besides
    stages: tuple[StageCost, ...]  # each part on the replica where it takes longest


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """One replica of a template."""

    template: int  # index of its template
    replica: int  # its index in the template
    micro_batches: int  # M
    stages: tuple[StageCost, ...]  # D costs in pipeline order
    lock_step: LockStep | None = None  # None: it goes on alone

    @property
    def rounds(self) -> int:
        """R: micro-batches that pass through it in a step, empty ones included."""
        return self.lock_step.rounds if self.lock_step else self.micro_batches

    @property
    def paced(self) -> tuple[StageCost, ...]:
        """Its stages, the waits for other replicas included."""
        return self.lock_step.stages if self.lock_step else self.stages

    @property
    def stage_s(self) -> tuple[float, ...]:
        """Of each stage from one micro-batch to the next, the wait for other replicas included."""
        return tuple(stage.time_s for stage in self.paced)

    @property
    def pipeline_s(self) -> float:
        """(R - 1) * max(t) + sum(t)."""
        times = self.stage_s
        return formulas.pipeline_seconds(self.rounds, max(times), sum(times))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCost:
    """Cost of one iteration of a plan."""

    # the slowest replica + `sync_s` + `optimizer_s` + `broadcast_s`
    iteration_s: float
    throughput_samples_s: float  # global batch over `iteration_s`
    replicas: tuple[ReplicaCost, ...]  # one cost per replica, in plan order
    sync_s: float  # the largest gradient synchronisation of any rank
    optimizer_s: float  # the largest optimizer step of any rank
    broadcast_s: float = 0.0  # the longest broadcasts of owners' weights of any rank; ZeRO 1
    peak_memory_bytes: int  # the largest of any GPU
    bubble: float  # share of the GPU seconds of the iteration in which no stage works

    @property
    def distinct(self) -> tuple[tuple[ReplicaCost, int], ...]:
        """The first of each kind of replica, in plan order, with how many cost the same."""
        kinds: dict[tuple[object, ...], list[ReplicaCost]] = {}
        for replica in self.replicas:
            key = (replica.template, replica.micro_batches, replica.stages)
            kinds.setdefault(key, []).append(replica)
        return tuple((alike[0], len(alike)) for alike in kinds.values())


def cost_of(
    plan: Plan,
    workload: Workload,
    composition: Composition,
    profile: Profile,
    *,
    placed: bool = True,
) -> PlanCost:
    """The formula cost of a placed plan; memory is reported, not enforced.

    The plan says its stage of ZeRO, whatever the workload asks for.

    Args:
        plan: its placement says which ranks share a node.
        workload: what it trains.
        composition: supplies speed factors, and network cards of the nodes that state one.
        profile: supplies all costs.
        placed: whether edges inside a node take the node's link, or all count as crossing.

    Raises:
        UnprofiledConfiguration: the profile lacks a key of the plan, or speaks of another workload.
        InvalidPlan: a node of the plan is not in the composition, or a TP group crosses two hosts.
    """
    hosted = with_hosts(composition, profile)
    if hosted is not composition:
        plan, composition = _on_hosts(plan, hosted), hosted
    ranks = RankMap.of(plan)
    workload = replace(workload, zero=plan.zero)
    replicas = replica_costs(plan, ranks, workload, composition, profile, placed=placed)
    return whole_cost(plan, ranks, replicas, workload, composition, profile)


def _on_hosts(plan: Plan, composition: Composition) -> Plan:
    found = plan_on_hosts(plan, composition)
    if found is None:
        raise InvalidPlan(
            "a TP group of the plan crosses two hosts of a node; give a plan whose groups stay "
            "in one host",
            code="Unsupported",
        )
    return found


class _Site(NamedTuple):
    """The nodes of a plan, by name."""

    speed: Mapping[str, float]  # speed factors
    nics: Mapping[str, float]  # bytes per second of the network cards that are stated
    busy: Mapping[str, int]  # ranks
    sending: Mapping[str, int]  # of them, those whose stages send to another node


def replica_costs(
    plan: Plan,
    ranks: RankMap,
    workload: Workload,
    composition: Composition,
    profile: Profile,
    *,
    placed: bool = True,
) -> tuple[ReplicaCost, ...]:
    """The cost of every replica, in plan order; arguments and errors are those of `cost_of`."""
    profile.require(workload)
    sending: Counter[str] = Counter()
    nodes_of = [[ranks.seats[group[0]].node for group in one.ranks] for one in ranks.pipelines]
    for pipeline, nodes in zip(ranks.pipelines, nodes_of, strict=True):
        for s in sending_stages(nodes, placed=placed):
            sending[nodes[s]] += len(pipeline.ranks[s])
    busy = Counter(seat.node for seat in ranks.seats)
    site = _Site(_speed_factors(plan, composition), composition.nics, busy, sending)
    known: dict[tuple[object, ...], tuple[StageCost, ...]] = {}
    stages = []
    for pipeline, nodes in zip(ranks.pipelines, nodes_of, strict=True):
        key = (  # replicas whose stages sit alike have one cost
            pipeline.template_index,
            min(pipeline.rounds, len(nodes)),  # as many are in flight at most
            tuple(left == right for left, right in pairwise(nodes)),
            tuple((site.speed[node], sending[node], site.nics.get(node)) for node in nodes),
        )
        if key not in known:
            known[key] = _stage_costs(pipeline, nodes, ranks, workload, profile, site, placed)
        stages.append(known[key])
    return costs_of_stages(ranks, stages)


def costs_of_stages(
    ranks: RankMap, stages: Sequence[tuple[StageCost, ...]]
) -> tuple[ReplicaCost, ...]:
    """The cost of every replica, in plan order, whose stages are priced."""
    slowest: dict[int, tuple[StageCost, ...]] = {}  # by template in lock-step
    for pipeline, costs in zip(ranks.pipelines, stages, strict=True):
        if pipeline.template.is_in_lock_step:
            known = slowest.get(pipeline.template_index, costs)
            slowest[pipeline.template_index] = tuple(map(StageCost.slower, known, costs))
    return tuple(
        ReplicaCost(
            pipeline.template_index,
            pipeline.replica,
            pipeline.num_micro_batches,
            costs,
            LockStep(pipeline.rounds, slowest[pipeline.template_index])
            if pipeline.template_index in slowest
            else None,
        )
        for pipeline, costs in zip(ranks.pipelines, stages, strict=True)
    )


def _stage_costs(
    pipeline: Pipeline,
    nodes: Sequence[str],
    ranks: RankMap,
    workload: Workload,
    profile: Profile,
    site: _Site,
    placed: bool,
) -> tuple[StageCost, ...]:
    """The cost of each stage of a replica whose stages stand on these nodes."""
    template = pipeline.template
    b, stages = template.micro_batch, template.stages
    message = boundary_bytes(workload, b)
    ends = [
        EdgeEnd(stage.gpu_type, stage.tp, site.sending[node], site.nics.get(node))
        for stage, node in zip(stages, nodes, strict=True)
    ]
    edges = [
        edge_seconds(profile, *pair, message, inside=placed and left == right)
        for pair, (left, right) in zip(pairwise(ends), pairwise(nodes), strict=True)
    ]
    prices = []
    cuts = template.layer_bounds()
    for index, stage in enumerate(stages):
        layers = range(*cuts[index : index + 2])
        expert_s = 0.0
        if stage.is_tiled:
            group = ranks.stage_ranks(pipeline.template_index, index)
            seats = [ranks.seats[rank] for rank in group]
            devices = [Device(s.node, s.gpu_type, site.nics.get(s.node)) for s in seats]
            tiling = Tiling(stage.tp, stage.ep, stage.expert_tp)
            expert_s = expert_seconds(workload, profile, tiling, devices, b, site.busy)
        work = stage_seconds(profile, workload.model, stage, b, layers, expert_s)
        work = work.at_speed(site.speed[nodes[index]])
        slot = slot_of(template, index, pipeline.rounds)
        prices.append(
            StageCost(
                forward_s=work.forward_s + work.communication_s / 2,
                backward_s=work.backward_s + work.communication_s / 2 + work.recompute_s,
                to_previous_s=edges[index - 1] if index else 0.0,
                to_next_s=edges[index] if index < len(edges) else 0.0,
                memory=stage_memory(workload, profile, slot, stage.layers),
                work=work,
            )
        )
    return tuple(prices)


def whole_cost(
    plan: Plan,
    ranks: RankMap,
    replicas: tuple[ReplicaCost, ...],
    workload: Workload,
    composition: Composition,
    profile: Profile,
) -> PlanCost:
    """The cost of a placed plan whose replicas are priced; further arguments as of `cost_of`."""
    sync_s = max(sync_seconds(workload, ranks, profile, composition.nics))
    optimizer_s = optimizer_seconds(ranks, workload, profile, _speed_factors(plan, composition))
    broadcast_s = max(broadcast_seconds(workload, ranks, profile, composition.nics))
    slowest_s = max(replica.pipeline_s for replica in replicas)
    iteration_s = slowest_s + sync_s + optimizer_s + broadcast_s
    worked = sum(
        stage.tp * replica.micro_batches * stage_price.time_s
        for replica, pipeline in zip(replicas, ranks.pipelines, strict=True)
        for stage, stage_price in zip(pipeline.template.stages, replica.stages, strict=True)
    )
    return PlanCost(
        iteration_s=iteration_s,
        throughput_samples_s=workload.global_batch / iteration_s,
        replicas=replicas,
        sync_s=sync_s,
        optimizer_s=optimizer_s,
        broadcast_s=broadcast_s,
        peak_memory_bytes=max(
            stage.peak_memory_bytes for replica in replicas for stage in replica.stages
        ),
        bubble=1 - (worked / plan.gpus + sync_s + optimizer_s + broadcast_s) / iteration_s,
    )


def _speed_factors(plan: Plan, composition: Composition) -> dict[str, float]:
    factors = {node.name: node.speed_factor for node in composition.nodes}
    missing = [name for name in plan.nodes if name not in factors]
    if missing:
        raise InvalidPlan(
            f"the plan uses node {missing[0]!r}, which is not in the composition "
            f"({', '.join(sorted(factors)) or 'it is empty'}); give the composition it was "
            "made for",
            code="Mismatch",
        )
    return factors


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """The seconds that one rank takes for each of its instructions."""

    forward_s: float  # of one micro-batch, TP communication included
    backward_s: float  # likewise
    to_previous_s: float  # one message to or from the stage before; 0 on the first stage
    to_next_s: float  # one message to or from the stage after; 0 on the last
    sync_s: float  # the plan's longest gradient sum: no rank steps before all have summed
    optimizer_s: float  # the plan's longest optimizer step
    broadcast_s: float  # the plan's longest broadcasts of owners' weights


def rank_times(
    plan: Plan, workload: Workload, composition: Composition, profile: Profile
) -> tuple[RankTimes, ...]:
    """The seconds of every instruction of every rank, by rank; errors as of `cost_of`."""
    priced = cost_of(plan, workload, composition, profile)
    return tuple(
        RankTimes(
            forward_s=one.forward_s,
            backward_s=one.backward_s,
            to_previous_s=one.to_previous_s,
            to_next_s=one.to_next_s,
            sync_s=priced.sync_s,
            optimizer_s=priced.optimizer_s,
            broadcast_s=priced.broadcast_s,
        )
        for replica in priced.replicas
        for one, stage in zip(replica.stages, plan.templates[replica.template].stages, strict=True)
        for _ in range(stage.tp)
    )
