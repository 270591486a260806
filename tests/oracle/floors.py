"""Seconds that no plan of a branch beats, so that brute force may leave the branch.

An iteration is the slowest pipeline + the longest sum of gradients + the longest optimizer step.  A
maximum is no less than any of its members, so for every replica r
    iteration >= pipeline(r) + optimizer step of some stage of r + gradients of some rank of r,
each with the best choice that its stages have.  A sum of gradients over R pipelines takes at least
2 (R-1)/R of what its rank holds over a link no slower than any it can have; where a pipeline has no
stage on a node, every message of that node leaves it, and all its ranks share its NIC.
Invariant: brute force asserts for each plan that it prices that the evaluator's figures are
not below these.
Legend: M micro-batches, n replicas of a template, R pipelines of a plan.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

from planner.cluster.composition import Composition
from planner.cost import formulas
from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.cost.links import EdgeEnd, edge_seconds, sending_stages
from planner.cost.memory import boundary_bytes
from planner.model.workload import Workload
from planner.plans.plan import Stage
from planner.profiles.profile import Profile
from tests.oracle.every_fill import EveryFill, Fill, StageChoice
from tests.oracle.every_placement import Option, Outline, Structure, Where
from tests.oracle.every_sharing import Runner

Kind = tuple[tuple[Stage, ...], int]
Bag = tuple[Outline, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """What a placement gives to a replica.

    Attributes:
        messages_s: of each stage, by micro-batch size: all its messages for one micro-batch.
        speeds: speed factor of each stage's node.
        sharers: ranks that share the NIC of each stage's node in the sum of gradients; 0: unknown.
    """

    messages_s: tuple[tuple[float, ...], ...]
    speeds: tuple[float, ...]
    sharers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A placed and filled template, before the batch is shared.

    Attributes:
        stages: with layers, recomputation and tiling.
        runners: its replicas, exactly as the evaluator prices them.
        optimizer_s: exactly, of its longest step.
        sync_s: that its longest sum of gradients takes at least.
        samples: the most that its replicas train within the limit.
    """

    stages: tuple[Stage, ...]
    runners: tuple[Runner, ...]
    optimizer_s: float
    sync_s: float
    samples: int

    @property
    def kind(self) -> Kind:
        """Its fill: equal for two templates that could be one."""
        return self.stages, self.runners[0].micro_batch


class Floors:
    """Floors of one enumeration; what was computed is kept."""

    def __init__(
        self,
        workload: Workload,
        profile: Profile,
        composition: Composition,
        fills: EveryFill,
        sizes: Sequence[int],
    ) -> None:
        """Prepare for one workload on one composition."""
        self._workload = workload
        self._profile = profile
        self._composition = composition
        self._fills = fills
        self._sizes = tuple(sizes)
        self._fronts: dict[tuple[Outline, int], tuple[list[float], list[int]]] = {}
        self._edge_s = cache(self._edge_seconds)
        self._exchange_s = cache(self._exchange_seconds)
        self._least = cache(self._least_lanes)
        self._latency_s = min(
            (profile.between_nodes(t).latency_s for t in composition.gpu_types), default=0.0
        )

    # ------------------------------------------------------------------ before placement

    def alone_s(self, structure: Structure, most_replicas: int) -> float:
        """No plan of several pipelines with such a replica is faster."""
        fronts = (self._front((structure, n), 2)[0] for n in range(1, most_replicas + 1))
        return min((times[0] for times in fronts if times), default=math.inf)

    def of_bag(self, bag: Bag) -> float:
        """No plan of these templates is faster; infinite if one of them has no fill."""
        pipelines = sum(n for _, n in bag)
        fronts = [(*self._front(outline, pipelines), outline[1]) for outline in bag]
        if not all(times for times, _, _ in fronts):
            return math.inf
        batch = self._workload.global_batch
        ends = sorted({end_s for times, _, _ in fronts for end_s in times})

        def reaches(end_s: float) -> bool:
            reached = 0
            for times, samples, replicas in fronts:
                index = bisect_right(times, end_s)
                if not index:
                    return False
                reached += replicas * samples[index - 1]
            return reached >= batch

        low, high = 0, len(ends)
        while low < high:
            middle = (low + high) // 2
            if reaches(ends[middle]):
                high = middle
            else:
                low = middle + 1
        return ends[low] if low < len(ends) else math.inf

    def _front(self, outline: Outline, pipelines: int) -> tuple[list[float], list[int]]:
        """(seconds ascending, most samples that one replica trains within them)."""
        key = (outline, pipelines)
        if key not in self._fronts:
            site = self._best_site(outline[0])
            ends = [
                (runner.seconds(m) + rest_s, m * runner.micro_batch)
                for _, runner, rest_s in self._least(outline, site, pipelines)
                for m in range(1, self._most(runner) + 1)
            ]
            times: list[float] = []
            samples: list[int] = []
            for end_s, count in sorted(ends, key=lambda end: (end[0], -end[1])):
                if not samples or count > samples[-1]:
                    times.append(end_s)
                    samples.append(count)
            self._fronts[key] = (times, samples)
        return self._fronts[key]

    def _most(self, runner: Runner) -> int:
        return min(runner.most, self._workload.global_batch // runner.micro_batch)

    def _best_site(self, structure: Structure) -> Site:
        """No placement gives a replica more: the fastest nodes, stages together where they fit."""
        largest: Counter[str] = Counter()
        speed: dict[str, float] = {}
        for node in self._composition.nodes:
            largest[node.gpu_type] = max(largest[node.gpu_type], node.gpus)
            speed[node.gpu_type] = max(speed.get(node.gpu_type, 0.0), node.speed_factor)
        edges = []
        for left, right in pairwise(structure):
            apart = self._edge_s(left, right, together=False, sending=(0, 0))
            if left[0] == right[0] and left[1] + right[1] <= largest[left[0]]:
                inside = self._edge_s(left, right, together=True, sending=(0, 0))
                apart = tuple(map(min, apart, inside))
            edges.append(apart)
        return Site(
            self._messages(edges, len(structure)),
            tuple(speed[gpu_type] for gpu_type, _ in structure),
            (0,) * len(structure),
        )

    # ------------------------------------------------------------------ after placement

    def placed(
        self, bag: Bag, where: Sequence[Sequence[Where]], limit_s: float
    ) -> list[list[Placed]]:
        """Of each template, every fill of which no replica alone exceeds the limit."""
        busy: Counter[int] = Counter()
        sending: Counter[int] = Counter()
        for (structure, _), replicas in zip(bag, where, strict=True):
            for nodes in replicas:
                for (_, tp), node in zip(structure, nodes, strict=True):
                    busy[node] += tp
                for s in sending_stages(nodes):
                    sending[nodes[s]] += structure[s][1]
        homes = [frozenset(nodes) for replicas in where for nodes in replicas]
        known = Counter(
            {
                node: ranks
                for node, ranks in busy.items()
                if any(node not in home for home in homes) and not self._profile.rings
            }
        )
        found = []
        for outline, replicas in zip(bag, where, strict=True):
            sites = [self._site(outline[0], nodes, sending, known) for nodes in replicas]
            rows = list(self._of_template(outline, replicas, sites, len(homes), limit_s, busy))
            found.append(rows)
            if not rows:
                break
        return found

    def _site(
        self, structure: Structure, nodes: Where, sending: Counter[int], known: Counter[int]
    ) -> Site:
        edges = []
        for s, (left, right) in enumerate(pairwise(structure)):
            one, other = nodes[s], nodes[s + 1]
            at_once = (sending[one], sending[other]) if self._profile.rings else (0, 0)
            edges.append(self._edge_s(left, right, together=one == other, sending=at_once))
        return Site(
            self._messages(edges, len(structure)),
            tuple(self._composition.nodes[node].speed_factor for node in nodes),
            tuple(known[node] for node in nodes),
        )

    def _of_template(
        self,
        outline: Outline,
        where: Sequence[Where],
        sites: Sequence[Site],
        pipelines: int,
        limit_s: float,
        busy: Counter[int],
    ) -> Iterator[Placed]:
        least = [self._least(outline, site, pipelines) for site in sites]
        for rows in zip(*least, strict=True):
            fill = rows[0][0]
            if all(runner.sum_s + rest_s < limit_s for _, runner, rest_s in rows):
                for choices in product(*fill.choices):
                    placed = self._chosen(
                        where, sites, fill.micro_batch, choices, pipelines, limit_s, busy
                    )
                    if placed is not None:
                        yield placed

    def _chosen(
        self,
        where: Sequence[Where],
        sites: Sequence[Site],
        b: int,
        choices: tuple[StageChoice, ...],
        pipelines: int,
        limit_s: float,
        busy: Counter[int],
    ) -> Placed | None:
        """The template with these choices; None if a tiling is none, or a replica too slow."""
        seconds = []
        for s, choice in enumerate(choices):
            exchange_s = 0.0
            if choice.stage.is_tiled:
                devices = tuple(nodes[s] for nodes in where for _ in range(choice.stage.tp))
                exchange_s = self._exchange_s(
                    choice.stage.gpu_type,
                    choice.stage.tp,
                    choice.stage.ep,
                    choice.stage.expert_tp,
                    devices,
                    tuple(busy[node] for node in devices),
                    b,
                )
                if exchange_s == math.inf:
                    return None
            seconds.append(choice.work_s + choice.exchanges * exchange_s)
        most = min(choice.most for choice in choices)
        index = self._sizes.index(b)
        by_site = [
            [
                work_s / speed + message_s[index]
                for work_s, speed, message_s in zip(
                    seconds, site.speeds, site.messages_s, strict=True
                )
            ]
            for site in sites
        ]
        tilings = [(one.stage.tp, one.stage.ep * one.stage.expert_tp) for one in choices]
        if any(tp % ways for tp, ways in tilings):  # tokens visit other replicas: lock-step
            by_site = [[max(times) for times in zip(*by_site, strict=True)]] * len(sites)
        runners, optimizer_s, sync_s = [], 0.0, 0.0
        for site, times in zip(sites, by_site, strict=True):
            runners.append(Runner(b, max(times), sum(times), most))
            for choice, speed, sharers in zip(choices, site.speeds, site.sharers, strict=True):
                optimizer_s = max(optimizer_s, choice.optimizer_s / speed)
                sync_s = max(
                    sync_s,
                    self._sync_s(choice.stage.gpu_type, choice.summed_bytes, pipelines, sharers),
                )
        left_s = limit_s - optimizer_s - sync_s
        counts = [min(self._most(r), r.done_by(left_s)) if left_s > 0 else 0 for r in runners]
        if not all(counts):
            return None
        return Placed(
            tuple(choice.stage for choice in choices),
            tuple(runners),
            optimizer_s,
            sync_s,
            b * sum(counts),
        )

    # ------------------------------------------------------------------ parts

    def _least_lanes(
        self, outline: Outline, site: Site, pipelines: int
    ) -> tuple[tuple[Fill, Runner, float], ...]:
        """(fill, a replica, optimizer step and gradients) with the best choice of each stage."""
        found = []
        for fill in self._fills.of(*outline):
            index = self._sizes.index(fill.micro_batch)
            times, optimizer_s, sync_s = [], 0.0, 0.0
            for s, (work_s, step_s, summed) in enumerate(fill.least()):
                times.append(work_s / site.speeds[s] + site.messages_s[s][index])
                optimizer_s = max(optimizer_s, step_s / site.speeds[s])
                gpu_type = outline[0][s][0]
                sync_s = max(sync_s, self._sync_s(gpu_type, summed, pipelines, site.sharers[s]))
            runner = Runner(fill.micro_batch, max(times), sum(times), fill.most)
            found.append((fill, runner, optimizer_s + sync_s))
        return tuple(found)

    def _messages(
        self, edges: Sequence[tuple[float, ...]], depth: int
    ) -> tuple[tuple[float, ...], ...]:
        """Seconds of activation and gradient on both edges of each stage, by micro-batch."""
        none = (0.0,) * len(self._sizes)
        around = [none, *edges, none]
        return tuple(
            tuple(
                formulas.boundary_seconds(one + other)
                for one, other in zip(*around[s : s + 2], strict=True)
            )
            for s in range(depth)
        )

    def _edge_seconds(
        self, left: Option, right: Option, *, together: bool, sending: tuple[int, int]
    ) -> tuple[float, ...]:
        """One message between two stages by the evaluator, by micro-batch.

        Args:
            left: one stage.
            right: the other.
            together: whether they share a node.
            sending: GPUs of the node of each that send to others; 0: nobody else sends.
        """
        ends = EdgeEnd(*left, sending[0], None), EdgeEnd(*right, sending[1], None)
        messages = (boundary_bytes(self._workload, b) for b in self._sizes)
        return tuple(edge_seconds(self._profile, *ends, m, inside=together) for m in messages)

    def _exchange_seconds(
        self,
        gpu_type: str,
        tp: int,
        ep: int,
        etp: int,
        nodes: tuple[int, ...],
        busy: tuple[int, ...],
        b: int,
    ) -> float:
        """Expert communication of a block by the evaluator; infinite if ETP would leave a node."""
        if any(len(set(nodes[start : start + etp])) > 1 for start in range(0, len(nodes), etp)):
            return math.inf
        devices = [Device(str(node), gpu_type, None) for node in nodes]
        senders = {str(node): ranks for node, ranks in zip(nodes, busy, strict=True)}
        tiling = Tiling(tp, ep, etp)
        return expert_seconds(self._workload, self._profile, tiling, devices, b, senders)

    def _sync_s(self, gpu_type: str, num_bytes: int, pipelines: int, sharers: int) -> float:
        """A sum of so many bytes of gradients over all pipelines takes no less.

        Args:
            gpu_type: of the rank.
            num_bytes: that it holds.
            pipelines: R.
            sharers: ranks of its node that use the NIC at once; 0: unknown.
        """
        if pipelines == 1:
            return 0.0
        volume = formulas.ring_factor(pipelines) * num_bytes
        nic = self._profile.between_nodes(gpu_type)
        ring = self._profile.inside_ring(gpu_type, pipelines)
        if nic.points or ring.points:
            return 0.0  # measured times of many small messages bound none of one large
        crossing_s = self._latency_s + volume * max(1, sharers) / nic.bandwidth_bytes_per_s
        return crossing_s if sharers else min(crossing_s, ring.seconds(volume))
