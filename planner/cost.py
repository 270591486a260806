"""What an iteration of a placed plan costs: the one evaluator of Heddle.

Replica: (M - 1) * max(t) + sum(t); plan: the slowest replica + max(g) + the optimizer step.
`price`, the event simulation and the workers that emulate devices take their seconds from the same
functions here, so that they can be compared.
Source: Heddle, section 5.2; design, "Cost".   Legend: t stage seconds, g gradient synchronisation,
M micro-batches of a replica, b micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.composition import Composition
from planner.errors import InvalidPlan
from planner.gradient_sync import sync_seconds
from planner.memory import StageSlot, boundary_bytes, stage_memory, stage_parameters
from planner.plan import Plan, Stage
from planner.profile import Kind, LinkCost, Profile
from planner.ranks import Pipeline, RankMap, Seat
from planner.workload import Workload


@dataclass(frozen=True, slots=True)
class StagePrice:
    """One stage of one replica, for one micro-batch.

    Attributes:
        forward_s: forward pass, half of the TP communication included.
        backward_s: backward pass, the other half included.
        to_previous_s: one message to or from the stage before; 0 on the first stage.
        to_next_s: one message to or from the stage after; 0 on the last.
        peak_memory_bytes: on each of its GPUs.
    """

    forward_s: float
    backward_s: float
    to_previous_s: float
    to_next_s: float
    peak_memory_bytes: int

    @property
    def p2p_s(self) -> float:
        """Activation and gradient on both edges."""
        return 2 * self.to_previous_s + 2 * self.to_next_s

    @property
    def time_s(self) -> float:
        """t: the stage's time for one micro-batch."""
        return self.forward_s + self.backward_s + self.p2p_s


@dataclass(frozen=True, slots=True)
class ReplicaPrice:
    """One replica of a template.

    Attributes:
        template: index of its template.
        replica: its index in the template.
        micro_batches: M.
        stages: D prices in pipeline order.
    """

    template: int
    replica: int
    micro_batches: int
    stages: tuple[StagePrice, ...]

    @property
    def pipeline_s(self) -> float:
        """(M - 1) * max(t) + sum(t)."""
        times = [stage.time_s for stage in self.stages]
        return (self.micro_batches - 1) * max(times) + sum(times)


@dataclass(frozen=True, slots=True)
class Price:
    """What one iteration of a plan costs.

    Attributes:
        iteration_s: the slowest replica + `sync_s` + `optimizer_s`.
        throughput_samples_s: global batch over `iteration_s`.
        replicas: one price per replica, in plan order.
        sync_s: the largest gradient synchronisation of any rank.
        optimizer_s: the largest optimizer step of any rank.
        peak_memory_bytes: the largest of any GPU.
        bubble: share of the GPU seconds of the iteration in which no stage works.
    """

    iteration_s: float
    throughput_samples_s: float
    replicas: tuple[ReplicaPrice, ...]
    sync_s: float
    optimizer_s: float
    peak_memory_bytes: int
    bubble: float


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The seconds that one rank takes for each of its instructions.

    Attributes:
        forward_s: forward pass of one micro-batch, TP communication included.
        backward_s: backward pass of one micro-batch, TP communication included.
        to_previous_s: one message to or from the stage before; 0 on the first stage.
        to_next_s: one message to or from the stage after; 0 on the last.
        sync_s: gradient synchronisation, the plan's largest: no rank steps before all have summed.
        optimizer_s: optimizer step, the plan's largest.
    """

    forward_s: float
    backward_s: float
    to_previous_s: float
    to_next_s: float
    sync_s: float
    optimizer_s: float


def stage_seconds(
    profile: Profile, stage: Stage, micro_batch: int, *, is_first: bool, is_last: bool
) -> tuple[float, float]:
    """(forward, backward) seconds of a stage for one micro-batch on nodes of speed factor 1.

    The TP communication is inside, half in each.

    Raises:
        UnprofiledConfiguration: the profile lacks a key of the stage.
    """
    block = profile.layer_cost("block", stage.gpu_type, stage.tp, micro_batch)
    forward_s = stage.layers * (block.forward_s + block.tp_communication_s / 2)
    backward_s = stage.layers * (block.backward_s + block.tp_communication_s / 2)
    ends: tuple[tuple[bool, Kind], ...] = ((is_first, "embedding"), (is_last, "head"))
    for here, kind in ends:
        if here:
            cost = profile.layer_cost(kind, stage.gpu_type, stage.tp, micro_batch)
            forward_s += cost.forward_s + cost.tp_communication_s / 2
            backward_s += cost.backward_s + cost.tp_communication_s / 2
    return forward_s, backward_s


def edge_link(profile: Profile, left: Seat, right: Seat) -> LinkCost:
    """The link between two neighbouring stages: the node's own if they share it."""
    if left.node == right.node:
        return profile.inside_node(left.gpu_type)
    return profile.between_nodes()


def pipeline_prices(
    pipeline: Pipeline,
    seats: Sequence[Seat],
    workload: Workload,
    profile: Profile,
    speed: Callable[[str], float],
) -> tuple[StagePrice, ...]:
    """The price of each stage of one running replica.

    Args:
        pipeline: the replica.
        seats: all seats of the plan, by rank.
        workload: supplies the size of an activation.
        profile: supplies all costs.
        speed: speed factor by node name.

    Raises:
        UnprofiledConfiguration: the profile lacks a key of a stage.
    """
    template = pipeline.template
    leads = [seats[group[0]] for group in pipeline.ranks]
    message = boundary_bytes(workload, template.micro_batch)
    edges = [edge_link(profile, left, right).seconds(message) for left, right in pairwise(leads)]
    depth = len(template.stages)
    prices = []
    for index, (stage, lead) in enumerate(zip(template.stages, leads, strict=True)):
        slot = StageSlot(
            stage.gpu_type,
            stage.tp,
            template.micro_batch,
            pipeline.num_micro_batches,
            depth,
            index,
        )
        forward_s, backward_s = stage_seconds(
            profile, stage, template.micro_batch, is_first=slot.is_first, is_last=slot.is_last
        )
        factor = speed(lead.node)
        prices.append(
            StagePrice(
                forward_s / factor,
                backward_s / factor,
                edges[index - 1] if index else 0.0,
                edges[index] if index < depth - 1 else 0.0,
                stage_memory(workload, profile, slot, stage.layers).peak_bytes,
            )
        )
    return tuple(prices)


def optimizer_seconds(
    ranks: RankMap, workload: Workload, profile: Profile, speed: Callable[[str], float]
) -> float:
    """The longest optimizer step of any rank."""
    longest = 0.0
    for pipeline in ranks.pipelines:
        last = len(pipeline.template.stages) - 1
        for index, stage in enumerate(pipeline.template.stages):
            held = stage_parameters(
                workload, stage.tp, stage.layers, is_first=index == 0, is_last=index == last
            )
            node = ranks.seats[pipeline.ranks[index][0]].node
            longest = max(longest, profile.optimizer_s(stage.gpu_type, held) / speed(node))
    return longest


def price(plan: Plan, workload: Workload, composition: Composition, profile: Profile) -> Price:
    """The formula price of a placed plan; memory is reported, not enforced.

    Raises:
        UnprofiledConfiguration: the profile lacks a key of the plan, or speaks of another workload.
        InvalidPlan: a node of the plan is not in the composition.
    """
    profile.require(workload)
    ranks = RankMap.of(plan)
    speed = _speed_factors(plan, composition)
    replicas = tuple(
        ReplicaPrice(
            pipeline.template_index,
            pipeline.replica,
            pipeline.num_micro_batches,
            pipeline_prices(pipeline, ranks.seats, workload, profile, speed),
        )
        for pipeline in ranks.pipelines
    )
    sync_s = max(sync_seconds(workload.model, ranks, profile))
    optimizer_s = optimizer_seconds(ranks, workload, profile, speed)
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
