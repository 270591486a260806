"""Fill templates: layers per stage, and the micro-batch.

Layers: for each bottleneck the cheapest split within the memory caps, kept as a Pareto set of
(bottleneck, sum), because the true M decides between them.  Micro-batch: every profiled size is
kept and chosen in the context of the whole plan.
Invariant: the layers of a filling sum to L, each at least 1.
Source: Heddle, section 5.3.   Legend: b micro-batch, M micro-batches, tau bottleneck seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from planner.cluster.composition import Composition
from planner.cost.batch_split import Lane, samples_by_size
from planner.cost.memory import StageSlot, boundary_bytes, layers_that_fit
from planner.model.workload import Workload
from planner.profiles.profile import BLOCKS, Kind, Profile

Option = tuple[str, int]  # GPU type, TP degree
Structure = tuple[Option, ...]  # the stages of a template, before any fill
Counts = tuple[tuple[Structure, int], ...]  # templates with their number of replicas

_TOLERANCE_S = 1e-12
_TRIES = 64


@dataclass(frozen=True, slots=True)
class Filling:
    """One way to fill a template: layers of each stage and what a replica then does.

    Its seconds assume that stages are on one node wherever they could be: no placement beats them.

    Attributes:
        layers: blocks of each stage.
        lane: what a replica does.
        ways: (recomputation, EP, ETP) of each stage; empty: the workload's, and no tiling.
        classes: number of the class of nodes of each stage; empty: any nodes of its type.
        by_stage: whether the nodes of its plan were thought to take one stage of many replicas.
    """

    layers: tuple[int, ...]
    lane: Lane
    ways: tuple[tuple[str, int, int], ...] = ()
    classes: tuple[int, ...] = ()
    by_stage: bool = False


def pareto_splits(
    block_s: Sequence[float], other_s: Sequence[float], caps: Sequence[int], num_layers: int
) -> list[tuple[tuple[int, ...], float, float]]:
    """(layers, bottleneck, sum) of every split that no other beats in both bottleneck and sum.

    Args:
        block_s: seconds of one block on each stage.
        other_s: what each stage takes besides (embedding, head, messages).
        caps: most blocks that each stage can hold.
        num_layers: L.
    """
    order = sorted(range(len(block_s)), key=lambda stage: (block_s[stage], stage))
    found: list[tuple[tuple[int, ...], float, float]] = []
    limit_s = math.inf
    while True:
        upper = list(caps)
        if limit_s < math.inf:
            room = [limit_s - _TOLERANCE_S - other for other in other_s]
            upper = [
                min(cap, math.ceil(r / a) - 1)
                for cap, r, a in zip(caps, room, block_s, strict=True)
            ]
        layers = _cheapest(order, upper, num_layers)
        if layers is None:
            break
        times = [
            other + a * count for other, a, count in zip(other_s, block_s, layers, strict=True)
        ]
        limit_s, sum_s = max(times), sum(times)
        while found and found[-1][2] >= sum_s - _TOLERANCE_S:
            found.pop()
        found.append((layers, limit_s, sum_s))
    return found


def _cheapest(
    order: Sequence[int], upper: Sequence[int], num_layers: int
) -> tuple[int, ...] | None:
    """One block everywhere, the rest where a block is cheapest; None if they do not fit."""
    left = num_layers - len(order)
    if left < 0 or min(upper) < 1 or sum(upper) < num_layers:
        return None
    layers = [1] * len(order)
    for stage in order:
        more = min(left, upper[stage] - 1)
        layers[stage] += more
        left -= more
    return tuple(layers)


class FillTable:
    """All fillings of the structures that a search meets, computed once each.

    It belongs to one search: costs of stages, fillings and their best samples by time are kept.
    """

    def __init__(self, workload: Workload, composition: Composition, profile: Profile) -> None:
        """Prepare for one workload on one composition."""
        self._workload = workload
        self._profile = profile
        self._largest: dict[str, int] = {}
        self._speed: dict[str, float] = {}
        for node in composition.nodes:
            kind = node.gpu_type
            self._largest[kind] = max(self._largest.get(kind, 0), node.gpus)
            self._speed[kind] = max(self._speed.get(kind, 0.0), node.speed_factor)
        self._sizes = {
            (kind, tp): set(profile.micro_batches(kind))
            for kind in self._largest
            for tp in profile.tp_degrees(kind)
        }
        self._seconds: dict[tuple[Kind, str, int, int], float] = {}
        self._caps: dict[tuple[object, ...], int] = {}
        self._fillings: dict[Structure, tuple[Filling, ...]] = {}
        self._frontiers: dict[Structure, tuple[list[float], list[int]]] = {}

    def fillings(self, structure: Structure) -> tuple[Filling, ...]:
        """Every filling worth keeping; empty if the structure cannot hold the model."""
        if structure not in self._fillings:
            self._fillings[structure] = tuple(self._fill(structure))
        return self._fillings[structure]

    def _fill(self, structure: Structure) -> Iterator[Filling]:
        depth, batch = len(structure), self._workload.global_batch
        # none where a running plan is older than the profile
        sizes = set.intersection(*(self._sizes.get(option, set()) for option in structure))
        for b in sorted(size for size in sizes if size <= batch):
            block_s, other_s = self._stage_seconds(structure, b)
            kept: list[Filling] = []
            known: set[tuple[int, ...]] = set()
            for most in (batch // b, *range(min(depth, batch // b + 1) - 1, 0, -1)):
                caps = tuple(self._cap(structure, b, most, index) for index in range(depth))
                if caps in known:
                    continue
                known.add(caps)
                for layers, tau, total in pareto_splits(
                    block_s, other_s, caps, self._workload.model.layers
                ):
                    beaten = any(
                        f.lane.bottleneck_s <= tau + _TOLERANCE_S
                        and f.lane.sum_s <= total + _TOLERANCE_S
                        for f in kept
                    )
                    if not beaten:
                        kept.append(Filling(layers, Lane(b, tau, total, most)))
            yield from kept

    def _stage_seconds(self, structure: Structure, b: int) -> tuple[list[float], list[float]]:
        """(seconds of one block, of all else) of each stage, on the best placement there can be."""
        blocks = self._workload.model.block_kinds[-1]
        block_s = [self._layer_s(blocks, kind, tp, b) for kind, tp in structure]
        other_s = [0.0] * len(structure)
        other_s[0] += self._layer_s("embedding", *structure[0], b)
        other_s[-1] += self._layer_s("head", *structure[-1], b)
        message = boundary_bytes(self._workload, b)
        for left, (one, other) in enumerate(pairwise(structure)):
            together = one[0] == other[0] and one[1] + other[1] <= self._largest[one[0]]
            link = (
                self._profile.inside_node(one[0])
                if together
                else self._profile.between_nodes(one[0], other[0])
            )
            both_ways_s = 2 * link.seconds(message)
            other_s[left] += both_ways_s
            other_s[left + 1] += both_ways_s
        return block_s, other_s

    def _layer_s(self, kind: Kind, gpu_type: str, tp: int, b: int) -> float:
        key = (kind, gpu_type, tp, b)
        if key not in self._seconds:
            cost = self._profile.layer_cost(kind, gpu_type, tp, b)
            seconds = cost.forward_s + cost.backward_s + cost.tp_communication_s
            if kind in BLOCKS:
                seconds += cost.recompute_s(self._workload.recompute)
            self._seconds[key] = seconds / self._speed[gpu_type]
        return self._seconds[key]

    def _cap(self, structure: Structure, b: int, micro_batches: int, index: int) -> int:
        gpu_type, tp = structure[index]
        slot = StageSlot(
            gpu_type, tp, b, micro_batches, len(structure), index, self._workload.recompute
        )
        key = (gpu_type, tp, b, slot.in_flight, slot.is_first, slot.is_last)
        if key not in self._caps:
            self._caps[key] = layers_that_fit(self._workload, self._profile, slot)
        return self._caps[key]

    def frontier(self, structure: Structure) -> tuple[list[float], list[int]]:
        """(times ascending, most samples that one replica trains by then)."""
        if structure not in self._frontiers:
            ends: list[tuple[float, int]] = []
            for filling in self.fillings(structure):
                lane = filling.lane
                ends += [
                    (lane.seconds(count), count * lane.micro_batch)
                    for count in range(1, lane.most + 1)
                ]
            times: list[float] = []
            samples: list[int] = []
            for end_s, count in sorted(ends, key=lambda end: (end[0], -end[1])):
                if not samples or count > samples[-1]:
                    times.append(end_s)
                    samples.append(count)
            self._frontiers[structure] = (times, samples)
        return self._frontiers[structure]

    def samples_within(self, structure: Structure, limit_s: float) -> int:
        """The most samples that one replica trains in that time."""
        times, samples = self.frontier(structure)
        index = bisect_right(times, limit_s + _TOLERANCE_S)
        return samples[index - 1] if index else 0

    def reaches(self, counts: Counts, limit_s: float) -> bool:
        """Whether these templates could train the batch in that time, at their most optimistic."""
        reached = 0
        for structure, replicas in counts:
            samples = self.samples_within(structure, limit_s)
            if not samples:
                return False
            reached += replicas * samples
        return reached >= self._workload.global_batch

    def least_seconds(self, counts: Counts) -> float:
        """A time that no fill of these templates beats; infinite if one of them has no filling."""
        fronts = [(self.frontier(structure), n) for structure, n in counts]
        if any(not times for (times, _), _ in fronts):
            return math.inf
        floor_s = max(times[0] for (times, _), _ in fronts)
        if (
            sum(n * self.samples_within(s, floor_s) for s, n in counts)
            >= self._workload.global_batch
        ):
            return floor_s
        best_s = math.inf
        for (times, _), _ in fronts:
            low, high = 0, len(times)
            while low < high:
                middle = (low + high) // 2
                reached = sum(n * self.samples_within(s, times[middle]) for s, n in counts)
                if reached >= self._workload.global_batch:
                    high = middle
                else:
                    low = middle + 1
            if low < len(times):
                best_s = min(best_s, max(times[low], floor_s))
        return best_s

    def choose(self, counts: Counts) -> tuple[Filling, ...] | None:
        """A filling for each template, such that the replicas share the batch and end earliest."""
        limit_s = self.least_seconds(counts)
        if limit_s == math.inf:
            return None
        ends = sorted(
            {
                end_s
                for structure, _ in counts
                for filling in self.fillings(structure)
                for end_s in self._ends_from(filling.lane, limit_s - _TOLERANCE_S)
            }
        )
        for end_s in ends[:_TRIES]:
            options = [self._by_size(structure, end_s) for structure, _ in counts]
            for chosen in product(*options):
                kinds: Counter[Lane] = Counter()
                for filling, (_, replicas) in zip(chosen, counts, strict=True):
                    kinds[filling.lane] += replicas
                if samples_by_size(self._workload.global_batch, kinds, end_s) is not None:
                    return chosen
        return None

    @staticmethod
    def _ends_from(lane: Lane, limit_s: float) -> Iterator[float]:
        """When a replica ends with each number of micro-batches; the first ones not before then."""
        first = bisect_left(range(1, lane.most + 1), limit_s, key=lane.seconds) + 1
        return map(lane.seconds, range(first, min(first + _TRIES, lane.most + 1)))

    def _by_size(self, structure: Structure, limit_s: float) -> list[Filling]:
        """For each micro-batch the filling that trains most by then, larger micro-batches first."""
        best: dict[int, Filling] = {}
        for filling in self.fillings(structure):
            b = filling.lane.micro_batch
            count = filling.lane.within(limit_s)
            if count and (b not in best or count > best[b].lane.within(limit_s)):
                best[b] = filling
        return [best[b] for b in sorted(best, reverse=True)]
