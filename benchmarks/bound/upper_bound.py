"""An upper bound on the samples per second of all plans, proven by prices of GPUs.

Give every GPU a price in samples, so that all GPUs of the composition together cost one global
batch.  In every plan some replica then trains at least as many samples as its GPUs cost.  With
micro-batches of b samples, stage seconds t and the bottleneck tau = max t, that takes it at least
the sum over its stages of (price * tau / b + t), less one tau.  So no plan is faster than the
cheapest pipeline there could be, which a dynamic programme over blocks finds for each micro-batch
size and each interval of bottlenecks.  A linear programme chooses the prices for which this time is
longest: every round adds the pipelines that were cheapest at the last prices.
Invariant: no plan that `planner.cost.evaluate` prices beats the bound.
Source: Farley's bound for column generation.
Legend: K device groups, R rows of room, L blocks, G intervals of bottlenecks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog

from benchmarks.bound.stages import PLACES, Floats, Ints, StageCosts
from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import UNLIMITED, GpuLimits, gpus_by_type
from planner.model.workload import Workload
from planner.placement.node_classes import class_sizes
from planner.profiles.profile import Profile
from planner.request import PlanAnswer, PlanRequest

WIDE, NARROW = 1.1, 1.004  # ratio of the ends of an interval of bottlenecks, at first and at last
PRECISION = 0.003  # how near the bound comes to what the best prices could prove
ROUNDS = 60  # of prices
FEW = 8  # pipelines of a micro-batch size that a round adds, and intervals that it halves


@dataclass(frozen=True, slots=True)
class BoundAnswer:
    """Throughput that no plan can exceed."""

    bound_samples_s: float  # samples per second
    gap_percent: float  # how far the plan stays below it, in per cent of the bound
    bound_assumes: tuple[str, ...]  # what the proof rests on


def bound(request: PlanRequest, profile: Profile, answer: PlanAnswer) -> BoundAnswer:
    """An upper bound on samples/s of all plans for the request, and how near the answer is.

    Args:
        request: workload and composition; nodes of GPU types without a profile are left out.
        profile: supplies all costs.
        answer: any plan for it; the bound is never below what it reaches.
    """
    limits = request.max_gpus
    nodes = tuple(
        node
        for node in request.composition.nodes
        if node.gpu_type in profile.types and limits.most(node.gpu_type)
    )
    proof = Proof(request.workload, Composition(nodes), profile, limits)
    samples_s = request.workload.global_batch / proof.least_iteration_s(answer.cost.iteration_s)
    gap_percent = 100 * (1 - answer.cost.throughput_samples_s / samples_s)
    degrees = map(str, sorted({group.tp for group in proof.groups}))
    assumes = [
        f"TP degrees {', '.join(degrees)}, inside a node",
        f"micro-batches {', '.join(map(str, proof.sizes))}",
        "the profile's seconds, and network cards that nobody shares",
        "an iteration of (M - 1) max t + sum t, gradient sums and optimizer step",
    ]
    if request.workload.model.experts:
        assumes.append("expert tilings with EP and ETP powers of two, ETP inside a node")
    if limits.binds(request.composition):
        assumes.append(f"at most {limits}")
    unknown = sorted({n.gpu_type for n in request.composition.nodes} - set(profile.types))
    if unknown:
        assumes.append(f"no GPU of type {', '.join(unknown)}, which has no profile")
    return BoundAnswer(samples_s, gap_percent, tuple(assumes))


@dataclass(slots=True)
class Intervals:
    """Intervals of bottlenecks of one micro-batch size, and the cheapest pipelines in them."""

    b: int  # samples of a micro-batch
    low_s: Floats  # [G] lower ends
    high_s: Floats  # [G] upper ends
    # [G] seconds of the cheapest pipeline
    least_s: Floats = field(default_factory=lambda: np.zeros(0))
    # [G, L + 1] blocks of the first stage of those that hold the last so many blocks
    taken: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    @staticmethod
    def between(b: int, shortest_s: float, longest_s: float) -> Intervals:
        """Wide ones from the shortest bottleneck to the longest; the last one has no upper end."""
        count = max(0, math.ceil(math.log(longest_s / shortest_s, WIDE)))
        ends_s = np.append(shortest_s * (1 - 1e-9) * WIDE ** np.arange(count + 1.0), math.inf)
        return Intervals(b, ends_s[:-1], ends_s[1:])

    def below(self, target_s: float) -> list[int]:
        """The few whose pipelines are furthest below the target."""
        lowest = np.argsort(self.least_s)[:FEW]
        return [int(index) for index in lowest if self.least_s[index] < target_s]

    def split(self, chosen: list[int]) -> None:
        """Halve those of the chosen ones that are wide and have an upper end."""
        is_wide = np.zeros(len(self.low_s), np.bool_)
        is_wide[chosen] = self.high_s[chosen] > self.low_s[chosen] * NARROW
        is_wide &= self.high_s < math.inf
        middle_s = np.sqrt(self.low_s * self.high_s)[is_wide]
        self.low_s = np.concatenate([self.low_s[~is_wide], self.low_s[is_wide], middle_s])
        self.high_s = np.concatenate([self.high_s[~is_wide], middle_s, self.high_s[is_wide]])


class Proof:
    """All pipelines that there could be for a workload on a composition.

    Attributes:
        groups: K of them, on all node classes.
        sizes: micro-batch sizes.
    """

    def __init__(
        self,
        workload: Workload,
        composition: Composition,
        profile: Profile,
        max_gpus: GpuLimits = UNLIMITED,
    ) -> None:
        """Prepare the seconds of all stages; all GPU types are profiled."""
        self._workload, self._costs = workload, StageCosts(workload, composition, profile)
        self.groups = self._costs.groups
        members = class_sizes(composition)
        self._largest_node = max(node.gpus for node in members)
        # A row for every group counts GPUs in groups of its degree: [R] that the nodes have room
        # for, [K, R + 1] that any group takes of these.  Limits on GPUs have rows behind them; the
        # last row counts replicas.
        there = gpus_by_type(composition)
        limits = [(most, {name}) for name, most in max_gpus.by_type if most < there[name]]
        if max_gpus.total is not None and max_gpus.total < composition.gpus:
            limits.append((max_gpus.total, set(there)))
        self._room = np.array(
            [members[g.node] * (g.node.gpus // g.tp * g.tp) for g in self.groups]
            + [most for most, _ in limits]
        )
        self._uses = np.array(
            [
                [(g.tp // row.tp * row.tp) * (g.node == row.node) for row in self.groups]
                + [g.tp * (g.node.gpu_type in kinds) for _, kinds in limits]
                + [0]
                for g in self.groups
            ]
        )
        sizes = {b for kind in composition.gpu_types for b in profile.micro_batches(kind)}
        stage_s = {b: self._costs.seconds(b) for b in sorted(sizes) if b <= workload.global_batch}
        self._stage_s = {b: seconds for b, seconds in stage_s.items() if seconds.min() < math.inf}
        self.sizes = tuple(self._stage_s)

    def least_iteration_s(self, ceiling_s: float) -> float:
        """Seconds that an iteration of any plan takes at least, or the ceiling if that is less.

        Plans of so few replicas that a node may hold a GPU of each are looked at apart: gradients
        of all others leave the node.
        """
        least_s = self._least_s(ceiling_s, 1, self._largest_node)
        return self._least_s(least_s, self._largest_node + 1, None)

    def _least_s(self, ceiling_s: float, fewest: int, most: int | None) -> float:
        """The same for plans of so many replicas."""
        batch = self._workload.global_batch
        closing_s = self._costs.closing_seconds(fewest)
        room = np.append(self._room, most or 0)
        prices = np.append(np.full(len(self._room), batch / self._room.sum()), 0.0)
        intervals = [
            Intervals.between(b, float(seconds.min()), ceiling_s / 2)  # beyond, M is 1
            for b, seconds in self._stage_s.items()
        ]
        proven_s = min(float(seconds.min()) for seconds in self._stage_s.values())
        possible_s = ceiling_s
        known: list[Floats] = []
        for _ in range(ROUNDS):
            for each in intervals:
                self._find_cheapest(each, closing_s, prices)
            proven_s = max(proven_s, min(float(each.least_s.min()) for each in intervals))
            target_s = possible_s * (1 - PRECISION)
            if proven_s >= target_s:
                break
            for each in intervals:
                chosen = each.below(target_s)
                known += [self._pipeline(each, index, closing_s, prices) for index in chosen]
                each.split(chosen)
            prices, possible_s = _best_prices(np.array(known), room, batch, ceiling_s)
        return min(proven_s, ceiling_s)

    def _find_cheapest(self, each: Intervals, closing_s: Floats, prices: Floats) -> None:
        """Find the cheapest pipeline of every interval, from its last stage on."""
        layers = self._workload.model.layers
        inner, first, last, alone = (
            self._cheapest_stages(each, place, closing_s, prices) for place in range(len(PLACES))
        )
        cost = np.full_like(inner, np.inf)
        each.taken = np.zeros(cost.shape, np.int64)
        for held in range(1, layers + 1):
            front, back = (first, alone) if held == layers else (inner, last)
            ways = front[:, 1 : held + 1] + cost[:, held - 1 :: -1]
            ways[:, held - 1] = back[:, held]
            each.taken[:, held] = 1 + ways.argmin(axis=1)
            cost[:, held] = ways.min(axis=1)
        each.least_s = cost[:, layers] + each.low_s * (prices[-1] / each.b - 1)

    def _cheapest_stages(
        self, each: Intervals, place: int, closing_s: Floats, prices: Floats
    ) -> Floats:
        """[G, L + 1] what a stage with so many blocks costs on the group that is cheapest."""
        cheapest = np.full((len(each.low_s), closing_s.shape[1]), np.inf)
        for k, price in enumerate(self._uses @ prices):
            stage_s = self._stage_s[each.b][place, k]
            cost = (each.low_s / each.b * price)[:, None] + stage_s + closing_s[k]
            cost[stage_s > each.high_s[:, None]] = np.inf
            np.minimum(cheapest, cost, out=cheapest)
        return cheapest

    def _pipeline(self, each: Intervals, index: int, closing_s: Floats, prices: Floats) -> Floats:
        """[R + 2] seconds of an interval's cheapest pipeline: per price of each row; besides."""
        left = layers = self._workload.model.layers
        rate, high_s = each.low_s[index] / each.b, each.high_s[index]
        uses = np.append(np.zeros(len(self._room)), 1.0)
        sum_s, longest_s = 0.0, each.low_s[index]
        while left:
            blocks = int(each.taken[index, left])
            place = (left == layers) + 2 * (left == blocks)
            stage_s = self._stage_s[each.b][place, :, blocks]
            taken_s = np.where(stage_s <= high_s, stage_s + closing_s[:, blocks], np.inf)
            k = int(np.argmin(rate * (self._uses @ prices) + taken_s))
            uses += self._uses[k]
            sum_s += taken_s[k]
            longest_s = max(longest_s, stage_s[k])
            left -= blocks
        return np.append(longest_s / each.b * uses, sum_s - longest_s)


def _best_prices(
    pipelines: Floats, room: Floats, batch: int, ceiling_s: float
) -> tuple[Floats, float]:
    """[R + 1] prices of all room with which the fastest pipeline takes longest, and how long."""
    found = linprog(
        np.append(np.zeros(len(room)), -1.0),
        A_ub=np.column_stack([-pipelines[:, :-1], np.ones(len(pipelines))]),
        b_ub=pipelines[:, -1],
        A_eq=[np.append(room, 0.0)],
        b_eq=[batch],
        bounds=[*((0, None if held else 0) for held in room), (None, ceiling_s)],
    )
    return np.asarray(found.x[:-1]), float(found.x[-1])
