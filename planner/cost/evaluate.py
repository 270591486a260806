"""What an iteration of a placed plan costs: the one evaluator of Heddle.

Replica: (M - 1) * max(t) + sum(t); plan: the slowest replica + max(g) + the optimizer step.
`price`, the event simulation and the workers that emulate devices take their seconds from the same
functions here, so that they can be compared.
Source: Heddle, section 5.2; design, "Cost".   Legend: t stage seconds, g gradient synchronisation,
M micro-batches of a replica, b micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from planner.cluster.composition import Composition
from planner.cost import formulas
from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.cost.gradient_sync import NO_NICS, sync_seconds
from planner.cost.links import EdgeEnd, edge_seconds, sending_stages
from planner.cost.memory import StageMemory, StageSlot, boundary_bytes, stage_memory
from planner.cost.stage import StageWork, optimizer_seconds, stage_seconds
from planner.errors import InvalidPlan
from planner.model.workload import Workload
from planner.plans.plan import Plan
from planner.plans.ranks import Pipeline, RankMap
from planner.profiles.profile import Profile

NO_MEMORY = StageMemory(0, 0, 0, 0, 0, 0, 0)
NO_WORK = StageWork(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class StagePrice:
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


@dataclass(frozen=True, slots=True)
class ReplicaPrice:
    """One replica of a template."""

    template: int  # index of its template
    replica: int  # its index in the template
    micro_batches: int  # M
    stages: tuple[StagePrice, ...]  # D prices in pipeline order

    @property
    def pipeline_s(self) -> float:
        """(M - 1) * max(t) + sum(t)."""
        times = [stage.time_s for stage in self.stages]
        return formulas.pipeline_seconds(self.micro_batches, max(times), sum(times))


@dataclass(frozen=True, slots=True)
class Price:
    """What one iteration of a plan costs."""

    iteration_s: float  # the slowest replica + `sync_s` + `optimizer_s`
    throughput_samples_s: float  # global batch over `iteration_s`
    replicas: tuple[ReplicaPrice, ...]  # one price per replica, in plan order
    sync_s: float  # the largest gradient synchronisation of any rank
    optimizer_s: float  # the largest optimizer step of any rank
    peak_memory_bytes: int  # the largest of any GPU
    bubble: float  # share of the GPU seconds of the iteration in which no stage works

    @property
    def distinct(self) -> tuple[tuple[ReplicaPrice, int], ...]:
        """The first of each kind of replica, in plan order, with how many cost the same."""
        kinds: dict[tuple[object, ...], list[ReplicaPrice]] = {}
        for replica in self.replicas:
            key = (replica.template, replica.micro_batches, replica.stages)
            kinds.setdefault(key, []).append(replica)
        return tuple((alike[0], len(alike)) for alike in kinds.values())


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The seconds that one rank takes for each of its instructions."""

    forward_s: float  # forward pass of one micro-batch, TP communication included
    backward_s: float  # backward pass of one micro-batch, TP communication included
    to_previous_s: float  # one message to or from the stage before; 0 on the first stage
    to_next_s: float  # one message to or from the stage after; 0 on the last
    # gradient synchronisation, the plan's largest: no rank steps before all have summed
    sync_s: float
    optimizer_s: float  # optimizer step, the plan's largest


def pipeline_prices(
    pipeline: Pipeline,
    ranks: RankMap,
    workload: Workload,
    profile: Profile,
    speed: Callable[[str], float],
    busy: Mapping[str, int],
    sending: Mapping[str, int],
    *,
    placed: bool = True,
    nics: Mapping[str, float] = NO_NICS,
) -> tuple[StagePrice, ...]:
    """The price of each stage of one running replica.

    Args:
        pipeline: the replica.
        ranks: all ranks of the plan.
        workload: supplies the size of an activation.
        profile: supplies all costs.
        speed: speed factor by node name.
        busy: ranks by node.
        sending: of them, those whose stages send to another node.
        placed: whether edges inside a node take the node's link.
        nics: bytes per second of the network card of the nodes that state one.

    Raises:
        UnprofiledConfiguration: the profile lacks a key of a stage.
    """
    template = pipeline.template
    b = template.micro_batch
    leads = [ranks.seats[group[0]] for group in pipeline.ranks]
    message = boundary_bytes(workload, b)
    ends = [
        EdgeEnd(lead.gpu_type, lead.tp, sending[lead.node], nics.get(lead.node)) for lead in leads
    ]
    edges = [
        edge_seconds(
            profile,
            ends[index],
            ends[index + 1],
            message,
            inside=placed and leads[index].node == leads[index + 1].node,
        )
        for index in range(len(leads) - 1)
    ]
    depth = len(template.stages)
    cuts = template.layer_bounds()
    prices = []
    for index, (stage, lead) in enumerate(zip(template.stages, leads, strict=True)):
        slot = StageSlot(
            stage.gpu_type,
            stage.tp,
            b,
            pipeline.num_micro_batches,
            depth,
            index,
            stage.recompute,
            template.replicas,
            stage.ep,
            stage.etp,
            max(1, cuts[index]),
        )
        expert_s = 0.0
        if stage.is_tiled:
            devices = _stage_devices(ranks, pipeline.template_index, index, nics)
            tiling = Tiling(stage.tp, stage.ep, stage.expert_tp)
            expert_s = expert_seconds(workload, profile, tiling, devices, b, busy)
        work = stage_seconds(
            profile, workload.model, stage, b, range(cuts[index], cuts[index + 1]), expert_s
        ).at_speed(speed(lead.node))
        prices.append(
            StagePrice(
                work.forward_s + work.communication_s / 2,
                work.backward_s + work.communication_s / 2 + work.recompute_s,
                edges[index - 1] if index else 0.0,
                edges[index] if index < depth - 1 else 0.0,
                stage_memory(workload, profile, slot, stage.layers),
                work,
            )
        )
    return tuple(prices)


def _stage_devices(
    ranks: RankMap, template: int, stage: int, nics: Mapping[str, float]
) -> tuple[Device, ...]:
    """The GPUs of a stage over all replicas of its template."""
    seats = (
        ranks.seats[rank]
        for pipeline in ranks.pipelines
        if pipeline.template_index == template
        for rank in pipeline.ranks[stage]
    )
    return tuple(Device(seat.node, seat.gpu_type, nics.get(seat.node)) for seat in seats)


def price(
    plan: Plan,
    workload: Workload,
    composition: Composition,
    profile: Profile,
    *,
    placed: bool = True,
) -> Price:
    """The formula price of a placed plan; memory is reported, not enforced.

    Args:
        plan: its placement says which ranks share a node.
        workload: what it trains.
        composition: supplies speed factors, and network cards of the nodes that state one.
        profile: supplies all costs.
        placed: whether edges inside a node take the node's link, or all count as crossing.

    Raises:
        UnprofiledConfiguration: the profile lacks a key of the plan, or speaks of another workload.
        InvalidPlan: a node of the plan is not in the composition.
    """
    ranks = RankMap.of(plan)
    replicas = replica_prices(plan, ranks, workload, composition, profile, placed=placed)
    return whole_price(plan, ranks, replicas, workload, composition, profile)


def replica_prices(
    plan: Plan,
    ranks: RankMap,
    workload: Workload,
    composition: Composition,
    profile: Profile,
    *,
    placed: bool = True,
) -> tuple[ReplicaPrice, ...]:
    """The price of every replica, in plan order; arguments and errors are those of `price`."""
    profile.require(workload)
    speed = _speed_factors(plan, composition)
    nics = composition.nics
    busy = Counter(seat.node for seat in ranks.seats)
    sending: Counter[str] = Counter()
    for pipeline in ranks.pipelines:
        nodes = [ranks.seats[group[0]].node for group in pipeline.ranks]
        for s in sending_stages(nodes, placed=placed):
            sending[nodes[s]] += len(pipeline.ranks[s])
    known: dict[tuple[object, ...], tuple[StagePrice, ...]] = {}

    def prices_of(pipeline: Pipeline) -> tuple[StagePrice, ...]:
        """Replicas whose stages sit alike have one price."""
        leads = [ranks.seats[group[0]].node for group in pipeline.ranks]
        together = tuple(left == right for left, right in pairwise(leads))
        key = (
            pipeline.template_index,
            min(pipeline.num_micro_batches, len(leads)),  # as many are in flight at most
            together,
            tuple(map(speed, leads)),
            tuple(sending[node] for node in leads),
            tuple(nics.get(node) for node in leads),
        )
        if key not in known:
            known[key] = pipeline_prices(
                pipeline, ranks, workload, profile, speed, busy, sending, placed=placed, nics=nics
            )
        return known[key]

    return tuple(
        ReplicaPrice(
            pipeline.template_index,
            pipeline.replica,
            pipeline.num_micro_batches,
            prices_of(pipeline),
        )
        for pipeline in ranks.pipelines
    )


def whole_price(
    plan: Plan,
    ranks: RankMap,
    replicas: tuple[ReplicaPrice, ...],
    workload: Workload,
    composition: Composition,
    profile: Profile,
) -> Price:
    """The price of a placed plan whose replicas are priced; further arguments as of `price`."""
    sync_s = max(sync_seconds(workload, ranks, profile, composition.nics))
    optimizer_s = optimizer_seconds(ranks, workload, profile, _speed_factors(plan, composition))
    iteration_s = max(replica.pipeline_s for replica in replicas) + sync_s + optimizer_s
    worked = sum(
        stage.tp * replica.micro_batches * stage_price.time_s
        for replica, pipeline in zip(replicas, ranks.pipelines, strict=True)
        for stage, stage_price in zip(pipeline.template.stages, replica.stages, strict=True)
    )
    return Price(
        iteration_s,
        workload.global_batch / iteration_s,
        replicas,
        sync_s,
        optimizer_s,
        max(stage.peak_memory_bytes for replica in replicas for stage in replica.stages),
        1 - (worked / plan.gpus + sync_s + optimizer_s) / iteration_s,
    )


def _speed_factors(plan: Plan, composition: Composition) -> Callable[[str], float]:
    factors = {node.name: node.speed_factor for node in composition.nodes}
    missing = [name for name in plan.nodes if name not in factors]
    if missing:
        raise InvalidPlan(
            f"the plan uses node {missing[0]!r}, which is not in the composition "
            f"({', '.join(sorted(factors)) or 'it is empty'}); give the composition it was made for"
        )
    return factors.__getitem__


def rank_times(
    plan: Plan, workload: Workload, composition: Composition, profile: Profile
) -> tuple[RankTimes, ...]:
    """The seconds of every instruction of every rank, by rank.

    Raises:
        UnprofiledConfiguration: as `price`.
        InvalidPlan: as `price`.
    """
    priced = price(plan, workload, composition, profile)
    return tuple(
        RankTimes(
            stage.forward_s,
            stage.backward_s,
            stage.to_previous_s,
            stage.to_next_s,
            priced.sync_s,
            priced.optimizer_s,
        )
        for replica in priced.replicas
        for index, stage in enumerate(replica.stages)
        for _ in range(plan.templates[replica.template].stages[index].tp)
    )
