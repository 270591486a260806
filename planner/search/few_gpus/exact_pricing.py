"""Seconds of placed plans by the evaluator's own rules, each term computed once a search.

`planner.cost.evaluate.price` starts from nothing each time; a search over few GPUs asks for
thousands of plans that differ in one stage or one node.  Here the terms of a stage, an edge, an
exchange of tokens and a sum of gradients are kept by all that they depend on.
Invariant: seconds are those of `planner.cost.evaluate.price` for the same placed plan up to
rounding, and infinite where it does not fit in memory (a law test says so).
Source: Heddle, section 5.2.   Legend: b micro-batch, M micro-batches, n replicas, D stages.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from planner.cluster.composition import Composition
from planner.cost.batch_split import Lane, share
from planner.cost.evaluate import edge_link
from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.cost.gradient_sync import sync_seconds
from planner.cost.memory import StageSlot, boundary_bytes, stage_memory, stepped_parameters
from planner.cost.stage import StageWork, stage_seconds
from planner.errors import UnprofiledConfiguration
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from planner.profiles.profile import Profile
from planner.search.few_gpus.draft import Draft, Drafts, Way, plan_of
from planner.search.fill import Option


class StagePlace(NamedTuple):
    """A stage in its template: all that its terms depend on.

    Attributes:
        option: GPU type and TP degree.
        b: micro-batch.
        from_end: 1 for the last stage, D for the first.
        is_first: whether it holds the embedding.
        start: index of its first block, from 1.
        layers: its blocks.
        way: its recomputation and tiling.
        replicas: n of its template.
    """

    option: Option
    b: int
    from_end: int
    is_first: bool
    start: int
    layers: int
    way: Way
    replicas: int


class StageTerms(NamedTuple):
    """What a stage costs on a node of speed factor 1, whatever its node.

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


class Priced(NamedTuple):
    """What a plan costs.

    Attributes:
        seconds: of an iteration.
        lanes: of each replica, in plan order.
        shares: M of each replica.
    """

    seconds: float
    lanes: tuple[Lane, ...]
    shares: tuple[int, ...]


NONE = StageTerms(math.inf, 0, 0, math.inf)


class ExactPrices:
    """Prices of one search; what was computed is kept."""

    def __init__(self, workload: Workload, composition: Composition, profile: Profile) -> None:
        """Prepare for one workload on one composition."""
        self._workload, self._composition, self._profile = workload, composition, profile
        self._nodes = composition.nodes
        self._speed = [node.speed_factor for node in self._nodes]
        self._nics = composition.nics
        self._stated = [node.nic_bytes_per_s for node in self._nodes]
        alike: dict[tuple[object, ...], int] = {}
        self._class = [
            alike.setdefault((node.gpu_type, node.nic_bytes_per_s), len(alike))
            for node in self._nodes
        ]
        self._terms: dict[tuple[object, ...], StageTerms] = {}
        self._blocks: dict[tuple[Option, int, Way], float] = {}
        self._edges: dict[tuple[object, ...], float] = {}
        self._exchanges: dict[tuple[object, ...], float] = {}
        self._syncs: dict[tuple[object, ...], float] = {}

    def priced(self, drafts: Drafts, limit_s: float = math.inf) -> Priced | None:
        """The price of a plan; None if it does not fit, or takes no less than the limit."""
        floor = self.floor(drafts, limit_s)
        if floor is None:
            return None
        seconds = floor.seconds + self._sync_s(drafts)
        return floor._replace(seconds=seconds) if seconds < limit_s else None

    def floor(self, drafts: Drafts, limit_s: float = math.inf) -> Priced | None:
        """The price of a plan without its sum of gradients; None as above."""
        busy = [0] * len(self._nodes)
        for draft in drafts:
            for where in draft.where:
                for (_, tp), node in zip(draft.structure, where, strict=True):
                    busy[node] += tp
        lanes: list[Lane] = []
        optimizer_s = 0.0
        for draft in drafts:
            found = self._lanes(draft, busy)
            if found is None:
                return None
            lanes += found[0]
            optimizer_s = max(optimizer_s, found[1])
        if max(lane.sum_s for lane in lanes) + optimizer_s >= limit_s:
            return None
        shares = share(self._workload.global_batch, lanes)
        if shares is None:
            return None
        seconds = optimizer_s + max(
            lane.seconds(count) for lane, count in zip(lanes, shares, strict=True)
        )
        return Priced(seconds, tuple(lanes), shares) if seconds < limit_s else None

    def _lanes(self, draft: Draft, busy: list[int]) -> tuple[list[Lane], float] | None:
        """(each replica of a template, its longest optimizer step); None if it does not fit."""
        depth, b, replicas = len(draft.structure), draft.micro_batch, len(draft.where)
        works, steps = [], []
        most = self._workload.global_batch
        start = 1
        for s, (option, layers, way) in enumerate(
            zip(draft.structure, draft.layers, draft.ways, strict=True)
        ):
            place = StagePlace(option, b, depth - s, s == 0, start, layers, way, replicas)
            terms = self.stage_terms(place)
            start += layers
            if not terms.most:
                return None
            most = min(most, terms.most)
            work_s = terms.work_s
            if terms.exchanges and way[1:] != (1, 0):
                nodes = tuple(where[s] for where in draft.where)
                exchange_s = self._exchange_s(option, way, b, nodes, busy)
                if exchange_s == math.inf:
                    return None
                work_s += terms.exchanges * exchange_s
            works.append(work_s)
            steps.append(terms.optimizer_s)
        lanes: list[Lane] = []
        known: dict[tuple[int, ...], Lane] = {}
        optimizer_s = 0.0
        for where in draft.where:
            lane = known.get(where)
            if lane is None:
                times = [
                    work_s / self._speed[node] for work_s, node in zip(works, where, strict=True)
                ]
                for left in range(depth - 1):
                    message_s = self._edge_s(
                        draft.structure[left],
                        draft.structure[left + 1],
                        b,
                        where[left],
                        where[left + 1],
                        busy,
                    )
                    times[left] += message_s
                    times[left + 1] += message_s
                lane = known[where] = Lane(b, max(times), sum(times), most)
                for step_s, node in zip(steps, where, strict=True):
                    optimizer_s = max(optimizer_s, step_s / self._speed[node])
            lanes.append(lane)
        return lanes, optimizer_s

    # ------------------------------------------------------------------ terms

    def stage_terms(self, place: StagePlace) -> StageTerms:
        """The terms of a stage; those of no stage at all if it is not profiled or does not fit."""
        if not can_tile(place.option, place.way, place.replicas):
            return NONE
        key = (place[:-1], place.replicas if self._workload.zero else 1)
        terms = self._terms.get(key)
        if terms is None:
            terms = self._terms[key] = self._stage(place)
        return terms

    def block_s(self, option: Option, b: int, way: Way, replicas: int) -> float:
        """Seconds of a block of the model's last kind; infinite where `stage_terms` are none."""
        if not can_tile(option, way, replicas):
            return math.inf
        how, ep, etp = way
        key = (option, b, way)
        seconds = self._blocks.get(key)
        if seconds is None:
            model = self._workload.model
            run = range(model.layers, model.layers + 1)
            try:
                work = stage_seconds(self._profile, model, Stage(*option, 1, how, ep, etp), b, run)
                seconds = _total_s(work)
            except UnprofiledConfiguration:
                seconds = math.inf
            self._blocks[key] = seconds
        return seconds

    def _stage(self, place: StagePlace) -> StageTerms:
        workload, profile = self._workload, self._profile
        (gpu_type, tp), b, from_end, is_first, start, layers, (how, ep, etp), replicas = place
        index = 0 if is_first else 1  # which of the others it is makes no difference
        stop = start + layers + (1 if from_end == 1 else 0)
        run = range(0 if is_first else start, stop)
        experts = workload.model.kinds_of(run.start, run.stop).get("moe_block", 0)
        try:
            work = stage_seconds(
                profile, workload.model, Stage(gpu_type, tp, layers, how, ep, etp), b, run
            )
            usable = profile.gpu_type(gpu_type).usable_bytes
            for most in range(from_end, -1, -1):  # as many live at once at most
                slot = StageSlot(
                    gpu_type,
                    tp,
                    b,
                    max(1, most),
                    from_end + index,
                    index,
                    how,
                    replicas,
                    ep,
                    etp,
                    start,
                )
                if not most or stage_memory(workload, profile, slot, layers).peak_bytes <= usable:
                    break
        except UnprofiledConfiguration:
            return NONE
        if most == from_end:
            most = workload.global_batch
        step_s = profile.optimizer_s(gpu_type, stepped_parameters(workload, slot, layers))
        return StageTerms(
            _total_s(work),
            experts * (3 if how == "full" else 2),
            most,
            step_s,
        )

    def _exchange_s(
        self, option: Option, way: Way, b: int, nodes: tuple[int, ...], busy: list[int]
    ) -> float:
        """Expert communication of a block in one pass; infinite if ETP would leave a node."""
        gpu_type, tp = option
        _, ep, etp = way
        names: dict[int, int] = {}
        walk = tuple(names.setdefault(node, len(names)) for node in nodes)
        key = (option, b, ep, etp, walk, *((busy[node], self._stated[node]) for node in names))
        seconds = self._exchanges.get(key)
        if seconds is None:
            devices = [
                Device(str(node), gpu_type, self._stated[node]) for node in nodes for _ in range(tp)
            ]
            size = etp or tp
            runs = (devices[first : first + size] for first in range(0, len(devices), size))
            if any(len({device.node for device in run}) > 1 for run in runs):
                seconds = math.inf
            else:
                senders = {str(node): busy[node] for node in names}
                seconds = expert_seconds(
                    self._workload, self._profile, Tiling(tp, ep, size), devices, b, senders
                )
            self._exchanges[key] = seconds
        return seconds

    def _edge_s(
        self, left: Option, right: Option, b: int, one: int, other: int, busy: list[int]
    ) -> float:
        """Activation and gradient between two stages, in seconds."""
        together = one == other
        sent = (busy[one], busy[other]) if self._profile.rings and not together else (0, 0)
        key = (left, right, b, together, *sent, self._stated[one], self._stated[other])
        seconds = self._edges.get(key)
        if seconds is None:
            names = [self._nodes[node].name for node in (one, other)]
            template = FilledTemplate((Stage(*left, 1), Stage(*right, 1)), b, (1,))
            placed = (
                PlacedStage(0, 0, 0, names[0], tuple(range(left[1]))),
                PlacedStage(0, 0, 1, names[1], tuple(range(left[1], left[1] + right[1]))),
            )
            seats = RankMap.of(Plan((template,), placed)).seats
            ranks = dict(zip(names, (busy[one], busy[other]), strict=True))
            link = edge_link(self._profile, seats[0], seats[left[1]], busy=ranks, nics=self._nics)
            seconds = 2 * link.seconds(boundary_bytes(self._workload, b))
            self._edges[key] = seconds
        return seconds

    def _sync_s(self, drafts: Drafts) -> float:
        """The longest sum of gradients; it depends on layers, tilings, and who shares a node."""
        names: dict[int, tuple[int, int]] = {}
        seen: dict[int, int] = {}

        def name(node: int) -> tuple[int, int]:
            """Nodes that are alike, by the order of their first use."""
            if node not in names:
                kind = self._class[node]
                names[node] = (kind, seen.get(kind, 0))
                seen[kind] = seen.get(kind, 0) + 1
            return names[node]

        key = tuple(
            (
                draft.structure,
                draft.layers,
                tuple(way[1:] for way in draft.ways),
                tuple(tuple(map(name, where)) for where in draft.where),
            )
            for draft in drafts
        )
        seconds = self._syncs.get(key)
        if seconds is None:
            shares = [1] * sum(len(draft.where) for draft in drafts)
            ranks = RankMap.of(plan_of(drafts, shares, self._composition))
            seconds = max(sync_seconds(self._workload, ranks, self._profile, self._nics))
            self._syncs[key] = seconds
        return seconds


def can_tile(option: Option, way: Way, replicas: int) -> bool:
    """Whether the devices of a stage over all replicas make up whole tilings of its experts."""
    _, tp = option
    _, ep, etp = way
    return replicas * tp % (ep * (etp or tp)) == 0


def _total_s(work: StageWork) -> float:
    """All that a stage does for one micro-batch, messages to its neighbours apart."""
    return work.forward_s + work.backward_s + work.communication_s + work.recompute_s
