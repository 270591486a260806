"""Price of a plan that Heddle's plans cannot say, by the rules of Heddle's evaluator.

DP may differ by stage: a message between two stages then goes in as many parts as their replicas
overlap, each over its own link.  A micro-batch that is not profiled runs as powers of two, one
after the other.
Invariant: a grid that a plan can say, on replicas that are alike, has the price of that plan.
Source: the formula is that of `planner.cost.evaluate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from benchmarks.baselines.interface import Question
from benchmarks.baselines.layout import Grid, GridStage, Group
from planner.cost import formulas
from planner.cost.collectives import Sent, in_buckets
from planner.cost.links import EdgeEnd, edge_seconds, nic_of
from planner.cost.memory import (
    StageSlot,
    boundary_bytes,
    rule_of,
    slot_parameters,
    stage_memory,
    stepped_parameters,
)
from planner.cost.stage import stage_seconds
from planner.cost.weight_broadcasts import spread_parameters
from planner.plans.plan import Stage


@dataclass(frozen=True, slots=True)
class GridCost:
    """Iteration of a grid, and whether its GPUs hold it."""

    iteration_s: float
    fits: bool


def powers(samples: int, sizes: Sequence[int]) -> list[int]:
    """Profiled sizes that sum to so many samples, largest first.

    Raises:
        ValueError: they cannot.
    """
    found, left = [], samples
    for size in sorted(sizes, reverse=True):
        found += [size] * (left // size)
        left %= size
    if left:
        raise ValueError(f"{samples} samples are no sum of {sizes}")
    return found


def grid_cost(grid: Grid, question: Question, recompute: str) -> GridCost:
    """Seconds and memory of one grid that is the whole plan."""
    pricing = _Pricing(grid, question, recompute)
    depth, micro_batches = len(grid.stages), max(grid.micro_batches)
    times, sync_s, optimizer_s, broadcast_s, fits = [], 0.0, 0.0, 0.0, True
    for index in range(depth):
        times.append(pricing.stage_s(index))
        sync_s = max(sync_s, pricing.sync_s(index))
        optimizer_s = max(optimizer_s, pricing.optimizer_s(index))
        broadcast_s = max(broadcast_s, pricing.broadcast_s(index))
        fits = fits and pricing.fits(index)
    seconds = formulas.pipeline_seconds(micro_batches, max(times), sum(times))
    return GridCost(seconds + sync_s + optimizer_s + broadcast_s, fits)


class _Pricing:
    def __init__(self, grid: Grid, question: Question, recompute: str) -> None:
        self._grid, self._question, self._recompute = grid, question, recompute
        self._profile, self._workload = question.profile, question.workload
        self._cuts = (0, *accumulate(stage.blocks for stage in grid.stages))
        self._speed = {node.name: node.speed_factor for node in question.composition.nodes}
        self._nics = question.composition.nics
        self._sending = self._senders()
        rings: Counter[str] = Counter()
        for stage in grid.stages:
            nodes = {group.gpus[0][0] for group in stage.groups}
            for node in nodes if len(nodes) > 1 else ():
                rings[node] += stage.groups[0].tp
        self._rings = rings

    def _pairs(self, index: int) -> list[tuple[Group, Group, int]]:
        """Groups of a stage and the next that share samples, and how many."""
        left, right = self._grid.stages[index : index + 2]
        found = []
        for (a, first), (b, second) in (
            (one, other) for one in _spans(left) for other in _spans(right)
        ):
            both = min(a[1], b[1]) - max(a[0], b[0])
            if both > 0:
                found.append((first, second, both))
        return found

    def _senders(self) -> Counter[str]:
        """GPUs of each node whose groups send to another node."""
        sending: Counter[str] = Counter()
        leaves: dict[Group, str] = {}
        for index in range(len(self._grid.stages) - 1):
            for first, second, _ in self._pairs(index):
                one, other = first.gpus[0][0], second.gpus[0][0]
                if one != other:
                    leaves |= {first: one, second: other}
        for group, node in leaves.items():
            sending[node] += group.tp
        return sending

    def _end(self, group: Group) -> EdgeEnd:
        node = group.gpus[0][0]
        return EdgeEnd(group.gpu_type, group.tp, self._sending[node], self._nics.get(node))

    def _messages_s(self, index: int, side: int) -> dict[Group, float]:
        """Seconds of the messages of each group of a stage (side 0) with the next, or back."""
        found: Counter[Group] = Counter()
        seconds: dict[Group, float] = dict(found)
        for first, second, samples in self._pairs(index):
            message_s = edge_seconds(
                self._profile,
                self._end(first),
                self._end(second),
                boundary_bytes(self._workload, samples),
                inside=first.gpus[0][0] == second.gpus[0][0],
            )
            group = (first, second)[side]
            seconds[group] = seconds.get(group, 0.0) + message_s
        return seconds

    def _sizes(self, group: Group) -> list[int]:
        return powers(group.samples, self._profile.micro_batches(group.gpu_type))

    def _layers(self, index: int) -> range:
        last = len(self._grid.stages) - 1
        start = 0 if index == 0 else self._cuts[index] + 1
        stop = self._cuts[index + 1] + (2 if index == last else 1)
        return range(start, stop)

    def stage_s(self, index: int) -> float:
        """The slowest group of a stage for one micro-batch, its messages too."""
        edges: list[dict[Group, float]] = []
        if index:
            edges.append(self._messages_s(index - 1, 1))
        if index + 1 < len(self._grid.stages):
            edges.append(self._messages_s(index, 0))
        slowest = 0.0
        for group in set(self._grid.stages[index].groups):
            if not group.samples:
                continue
            stage = self._stage(index, group)
            layers = self._layers(index)
            model = self._workload.model
            parts = [
                stage_seconds(self._profile, model, stage, size, layers).at_speed(
                    self._speed[group.gpus[0][0]]
                )
                for size in self._sizes(group)
            ]
            work_s = sum(sum(part) for part in parts)
            sent_s = sum(formulas.boundary_seconds(edge.get(group, 0.0)) for edge in edges)
            slowest = max(slowest, work_s + sent_s)
        return slowest

    def _stage(self, index: int, group: Group) -> Stage:
        blocks = self._grid.stages[index].blocks
        return Stage(gpu_type=group.gpu_type, tp=group.tp, layers=blocks, recompute=self._recompute)

    def _slot(self, index: int, group: Group) -> StageSlot:
        return StageSlot(
            gpu_type=group.gpu_type,
            tp=group.tp,
            micro_batch=max(self._sizes(group), default=1),
            micro_batches=max(self._grid.micro_batches) * max(1, len(self._sizes(group))),
            depth=len(self._grid.stages),
            index=index,
            recompute=self._recompute,
            replicas=len(self._grid.stages[index].groups),
            start=max(1, self._layers(index).start),
        )

    def fits(self, index: int) -> bool:
        """Whether every GPU of a stage holds it, all parts of the micro-batches in flight too."""
        stage = self._grid.stages[index]
        for group in set(stage.groups):
            slot = self._slot(index, group)
            held = stage_memory(self._workload, self._profile, slot, stage.blocks)
            parts = max(1, len(self._sizes(group)))
            peak = held.peak_bytes + (parts - 1) * held.activations
            if peak > self._profile.gpu_type(group.gpu_type).usable_bytes:
                return False
        return True

    def sync_s(self, index: int) -> float:
        """The gradient sum of a stage over its groups."""
        members = len(self._grid.stages[index].groups)
        if members == 1:
            return 0.0
        first = self._slot(index, self._grid.stages[index].groups[0])
        blocks = self._grid.stages[index].blocks
        numel = sum(slot_parameters(self._workload.model, first, blocks))
        rule = rule_of(self._workload)
        bucket_bytes = rule.bucket * rule.gradient
        sent = in_buckets(numel * rule.gradient, bucket_bytes, formulas.ring_factor(members))
        return self._collective_s(index, sent)

    def broadcast_s(self, index: int) -> float:
        """The broadcasts of a stage's weights over its groups, with ZeRO 1."""
        members = len(self._grid.stages[index].groups)
        if members == 1 or not self._workload.zero:
            return 0.0
        first = self._slot(index, self._grid.stages[index].groups[0])
        blocks = self._grid.stages[index].blocks
        numel = sum(spread_parameters(self._workload.model, first, blocks))
        rule = rule_of(self._workload)
        of_each = numel * rule.weight / members
        factor = formulas.broadcast_factor(members)
        sent = in_buckets(of_each, rule.bucket * rule.weight, factor)
        return members * self._collective_s(index, sent)

    def _collective_s(self, index: int, sent: Sent) -> float:
        """Seconds of a collective of a stage over its groups."""
        groups = self._grid.stages[index].groups
        on = Counter((group.gpus[0][0], group.gpu_type) for group in groups)
        links = [self._profile.inside_ring(kind, n) for (_, kind), n in on.items() if n > 1]
        if len(on) > 1:
            cards = [
                nic_of(self._profile, kind, self._nics.get(node)).shared_by(
                    formulas.nic_share(self._rings[node], 1)
                )
                for node, kind in on
            ]
            links.append(min(cards, key=lambda card: card.bandwidth_bytes_per_s))
        return sent.messages * max(link.seconds(sent.num_bytes) for link in links)

    def optimizer_s(self, index: int) -> float:
        """The slowest optimizer step of a stage."""
        stage = self._grid.stages[index]
        return max(
            formulas.optimizer_seconds(
                stepped_parameters(self._workload, self._slot(index, group), stage.blocks),
                self._profile.gpu_type(group.gpu_type).optimizer_latency_s,
                self._profile.gpu_type(group.gpu_type).optimizer_s_per_parameter,
            )
            / self._speed[group.gpus[0][0]]
            for group in set(stage.groups)
        )


def _spans(stage: GridStage) -> list[tuple[tuple[int, int], Group]]:
    """The samples of a micro-batch that each group takes, as [from, to)."""
    ends = [0, *accumulate(group.samples for group in stage.groups)]
    return list(zip(pairwise(ends), stage.groups, strict=True))
