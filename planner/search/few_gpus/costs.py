"""Seconds of placed candidates by the evaluator's own functions, each term computed once a search.

`planner.cost.evaluate.cost_of` starts from nothing each time; a search over few GPUs asks for
thousands of plans that differ in one stage or one node.  Here the terms of a stage, an edge, an
exchange of tokens and a sum of gradients are kept by all that they depend on.
Invariant: seconds are those of `planner.cost.evaluate.cost_of` for the same placed plan up to
rounding (a test says so); a plan that does not fit in memory has none.
Source: Heddle, section 5.2.   Legend: b micro-batch, M micro-batches, n replicas, D stages.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from planner.cluster.composition import Composition
from planner.cost import formulas
from planner.cost.batch_split import Lane, share
from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.cost.gradient_sync import sync_seconds
from planner.cost.links import EdgeEnd, edge_seconds, sending_stages
from planner.cost.memory import (
    StageSlot,
    boundary_bytes,
    fits,
    layers_that_fit,
    stepped_parameters,
)
from planner.cost.stage import stage_seconds
from planner.cost.weight_broadcasts import broadcast_seconds
from planner.errors import UnprofiledConfiguration
from planner.model.workload import Workload
from planner.plans.plan import Stage
from planner.plans.ranks import RankMap
from planner.profiles.profile import Profile
from planner.search.few_gpus.placed_candidate import (
    Configuration,
    PlacedCandidate,
    PlacedTemplate,
    Where,
    plan_of,
)
from planner.search.fill import Option

SlotArguments = tuple[Option, int, int, bool, int, Configuration, int]


def slot_of(
    option: Option,
    b: int,
    from_end: int,
    is_first: bool,
    start: int,
    configuration: Configuration,
    replicas: int,
) -> StageSlot:
    """A stage as far as its terms depend on it; which stage after the first it is does not count.

    It is 1 stage from the end if it is the last, and D if it is the first; `start` is the index of
    its first block, from 1.
    """
    index = 0 if is_first else 1
    how, ep, etp = configuration
    return StageSlot(
        gpu_type=option[0],
        tp=option[1],
        micro_batch=b,
        micro_batches=1,
        depth=from_end + index,
        index=index,
        recompute=how,
        replicas=replicas,
        ep=ep,
        etp=etp,
        start=start,
    )


class StageTerms(NamedTuple):
    """Cost of a stage on a node of speed factor 1, whatever its node.

    Attributes:
        work_s: one micro-batch, messages and exchange of tokens apart.
        exchanges: passes of a block in which tokens are exchanged, if its experts are spread.
        most: the largest M that memory allows; 0 if it fits with none.
        optimizer_s: of its optimizer step.
    """

    work_s: float
    exchanges: int
    most: int
    optimizer_s: float


class Cost(NamedTuple):
    """Cost of a plan.

    Attributes:
        seconds: of an iteration.
        lanes: of each replica, in plan order.
        shares: M of each replica.
    """

    seconds: float
    lanes: tuple[Lane, ...]
    shares: tuple[int, ...]


NO_STAGE = StageTerms(math.inf, 0, 0, math.inf)


class CandidateCosts:
    """Costs of the candidates of one search; what was computed is kept.

    Attributes:
        workload: model and batch.
    """

    def __init__(self, workload: Workload, composition: Composition, profile: Profile) -> None:
        """Prepare for one workload on one composition."""
        self.workload, self._composition, self._profile = workload, composition, profile
        self._nodes = composition.nodes
        self._stage_terms = cache(self._compute_stage)
        self._terms_at = cache(self._compute_terms)
        self._most_layers = cache(self._compute_most_layers)
        self._edge_s = cache(self._compute_edge)
        self._exchange_s = cache(self._compute_exchange)
        self._sync_s = cache(self._compute_sync)

    def of(self, candidate: PlacedCandidate, limit_s: float = math.inf) -> Cost | None:
        """The cost of a plan; None if it does not fit, or takes no less than the limit."""
        floor = self.without_sync(candidate, limit_s)
        if floor is None:
            return None
        templates = tuple(
            one._replace(
                micro_batch=1,
                configurations=tuple(("none", ep, etp) for _, ep, etp in one.configurations),
            )
            for one in candidate
        )
        seconds = floor.seconds + self._sync_s(templates)
        return floor._replace(seconds=seconds) if seconds < limit_s else None

    def without_sync(self, candidate: PlacedCandidate, limit_s: float = math.inf) -> Cost | None:
        """The cost of a plan without sum of gradients and broadcasts; None as above."""
        busy = [0] * len(self._nodes)
        sending = [0] * len(self._nodes)
        for one in candidate:
            for where in one.where:
                for (_, tp), node in zip(one.structure, where, strict=True):
                    busy[node] += tp
                for s in sending_stages(where):
                    sending[where[s]] += one.structure[s][1]
        lanes: list[Lane] = []
        optimizer_s = 0.0
        for one in candidate:
            found = self._lanes(one, busy, sending)
            if found is None:
                return None
            lanes += found[0]
            optimizer_s = max(optimizer_s, found[1])
        if max(lane.sum_s for lane in lanes) + optimizer_s >= limit_s:
            return None
        shares = share(self.workload.global_batch, lanes)
        if shares is None:
            return None
        seconds = optimizer_s + max(
            lane.seconds(count) for lane, count in zip(lanes, shares, strict=True)
        )
        return Cost(seconds, tuple(lanes), shares) if seconds < limit_s else None

    def stage(self, slot: StageSlot, layers: int) -> StageTerms:
        """The terms of a stage; those of no stage at all if it is not profiled or cannot tile."""
        return self._stage_terms(self._normal(slot), layers) if _can_tile(slot) else NO_STAGE

    def most_layers(self, slot: StageSlot, micro_batches: int) -> int:
        """The most blocks that fit on a stage with so many micro-batches; 0 as above."""
        if not _can_tile(slot):
            return 0
        known = replace(self._normal(slot), micro_batches=micro_batches, start=None)
        return self._most_layers(known)

    def _normal(self, slot: StageSlot) -> StageSlot:
        """Where ZeRO cuts nothing, how many replicas there are does not count."""
        return slot if self.workload.zero else replace(slot, replicas=1)

    def _lanes(
        self, one: PlacedTemplate, busy: list[int], sending: list[int]
    ) -> tuple[list[Lane], float] | None:
        """(each replica of a template, its longest optimizer step); None if it does not fit."""
        depth, b = len(one.structure), one.micro_batch
        works_s, steps_s = [], []
        most = self.workload.global_batch
        start = 1
        for s, (option, layers, own) in enumerate(
            zip(one.structure, one.layers, one.configurations, strict=True)
        ):
            at = option, b, depth - s, s == 0, start, own, len(one.where)
            terms = self._terms_at(at, layers)
            start += layers
            exchange_s = 0.0
            if terms.exchanges and own[1:] != (1, 0):
                nodes = tuple(where[s] for where in one.where)
                exchange_s = self._exchange_s(option, own, b, nodes, tuple(busy))
            most = min(most, terms.most)
            if not most or exchange_s == math.inf:
                return None
            works_s.append(terms.work_s + terms.exchanges * exchange_s)
            steps_s.append(terms.optimizer_s)
        parts_s: dict[Where, list[float]] = {}  # of each stage, then of each edge
        optimizer_s = 0.0
        for where in one.where:
            if where not in parts_s:
                speeds = [self._nodes[node].speed_factor for node in where]
                passes_s = [work_s / v for work_s, v in zip(works_s, speeds, strict=True)]
                parts_s[where] = passes_s + self._edges_s(one, where, sending)
                optimizer_s = max(
                    optimizer_s, *(step_s / v for step_s, v in zip(steps_s, speeds, strict=True))
                )
        if one.is_in_lock_step:  # all go at the pace of the slowest
            slowest_s = [max(of) for of in zip(*parts_s.values(), strict=True)]
            parts_s |= [(where, slowest_s) for where in parts_s]
        lanes = {}
        for where, of in parts_s.items():
            edges_s = [0.0, *of[depth:], 0.0]
            times_s = [sum(edges_s[s : s + 2], of[s]) for s in range(depth)]
            lanes[where] = Lane(b, max(times_s), sum(times_s), most)
        return [lanes[where] for where in one.where], optimizer_s

    def _edges_s(self, one: PlacedTemplate, where: Where, sending: list[int]) -> list[float]:
        """Seconds of the messages from each stage of a replica to the next."""
        ends = [(one.structure[s], where[s], sending[where[s]]) for s in range(len(where))]
        return [
            self._edge_s(option, after, one.micro_batch, node, target, senders, senders_after)
            for (option, node, senders), (after, target, senders_after) in pairwise(ends)
        ]

    # ------------------------------------------------------------------ terms, kept

    def _compute_terms(self, at: SlotArguments, layers: int) -> StageTerms:
        """The terms of a stage; to build its slot takes longer than to find what is kept."""
        return self.stage(slot_of(*at), layers)

    def _compute_stage(self, slot: StageSlot, layers: int) -> StageTerms:
        workload, profile = self.workload, self._profile
        start, last = slot.start or 0, slot.depth - slot.index
        run = range(0 if slot.is_first else start, start + layers + (1 if slot.is_last else 0))
        experts = workload.model.kinds_of(run.start, run.stop).get("moe_block", 0)
        stage = Stage(
            gpu_type=slot.gpu_type,
            tp=slot.tp,
            layers=layers,
            recompute=slot.recompute,
            ep=slot.ep,
            etp=slot.etp,
        )
        try:
            work = stage_seconds(profile, workload.model, stage, slot.micro_batch, run)
            most = last  # as many live at once at most
            while most and not fits(workload, profile, replace(slot, micro_batches=most), layers):
                most -= 1
        except UnprofiledConfiguration:
            return NO_STAGE
        gpu = profile.gpu_type(stage.gpu_type)
        return StageTerms(
            work.forward_s + work.backward_s + work.communication_s + work.recompute_s,
            experts * formulas.exchanged_passes(stage.recompute == "full"),
            workload.global_batch if most == last else most,
            formulas.optimizer_seconds(
                stepped_parameters(workload, slot, layers),
                gpu.optimizer_latency_s,
                gpu.optimizer_s_per_parameter,
            ),
        )

    def _compute_most_layers(self, slot: StageSlot) -> int:
        try:
            return layers_that_fit(self.workload, self._profile, slot)
        except UnprofiledConfiguration:
            return 0

    def _compute_exchange(
        self,
        option: Option,
        configuration: Configuration,
        b: int,
        nodes: tuple[int, ...],
        busy: tuple[int, ...],
    ) -> float:
        """Expert communication of a block in one pass; infinite if ETP would leave a node."""
        gpu_type, tp = option
        _, ep, etp = configuration
        size = etp or tp
        homes = [node for node in nodes for _ in range(tp)]
        if any(len(set(homes[i : i + size])) > 1 for i in range(0, len(homes), size)):
            return math.inf
        devices = [Device(str(n), gpu_type, self._nodes[n].nic_bytes_per_s) for n in homes]
        senders = {str(node): busy[node] for node in nodes}
        tiling = Tiling(tp, ep, size)
        return expert_seconds(self.workload, self._profile, tiling, devices, b, senders)

    def _compute_edge(
        self, left: Option, right: Option, b: int, one: int, other: int, sent: int, received: int
    ) -> float:
        """Activation and gradient between two stages."""
        message_s = edge_seconds(
            self._profile,
            EdgeEnd(*left, sent, self._nodes[one].nic_bytes_per_s),
            EdgeEnd(*right, received, self._nodes[other].nic_bytes_per_s),
            boundary_bytes(self.workload, b),
            inside=one == other,
        )
        return formulas.boundary_seconds(message_s)

    def _compute_sync(self, candidate: PlacedCandidate) -> float:
        """The longest sum of gradients, and the longest broadcasts of owners' weights."""
        shares = [1] * sum(len(one.where) for one in candidate)
        ranks = RankMap.of(plan_of(candidate, shares, self._composition))
        asked = self.workload, ranks, self._profile, self._composition.nics
        return max(sync_seconds(*asked)) + max(broadcast_seconds(*asked))


def _can_tile(slot: StageSlot) -> bool:
    """Whether the devices of a stage over all replicas make up whole tilings of its experts."""
    return slot.replicas * slot.tp % slot.expert_ways == 0
