"""Sailor's search: PP, micro-batch and DP around its dynamic programme.

DP goes from high to low through the values with another number of micro-batches, and stops once the
iteration takes longer than before.
Source: Strati et al., Sailor, SOSP 2025.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from benchmarks.baselines.interface import Answer, Budget, Meter, Question
from benchmarks.baselines.layout import Grid, GridStage, Group, Layout, carve, shares_of
from benchmarks.baselines.quantities import (
    Quantities,
    blocks_of,
    require_profiled,
    uniform_reading,
)
from benchmarks.baselines.sailor.rules import even_cuts, stage_seconds, tp_degrees
from benchmarks.baselines.sailor.stages import MOST, P2P, RING, SUM, new_table, solve

BUCKET_BYTES = 500_000_000  # of the gradient sum
FIRST_RATE = 2e6  # splits a second, until it is known


def plan(question: Question, budget: Budget, *, as_released: bool = False) -> Answer:
    """The best plan of every PP, micro-batch and DP, ranked.

    Raises:
        InvalidComposition: there is no GPU.
        UnprofiledConfiguration: a GPU type has no profile.
    """
    require_profiled(question)
    load()
    return _Search(question, Meter(budget), as_released).run()


def load() -> None:
    """Load what numba has compiled, once a process: no part of a budget."""
    one, whole = np.ones((1, 1)), np.ones((1, 1), np.int64)
    counters = np.array([0, 1, 0, 2], np.int64)
    solve(0, whole[0], whole, one, np.ones((1, 2)), np.ones(2), 1, 1, new_table(), counters)


class _Search:
    def __init__(self, question: Question, meter: Meter, as_released: bool) -> None:
        self._question, self._meter, self._as_released = question, meter, as_released
        self._numbers = Quantities(question)
        _, node_gpus = uniform_reading(question.composition)
        self._degrees = {
            gpu_type: self._numbers.tp_degrees(gpu_type, node_gpus)
            for gpu_type in question.composition.gpu_types
        }
        self._gpus = dict.fromkeys(question.composition.gpu_types, 0)
        for node in question.composition.nodes:
            self._gpus[node.gpu_type] += node.gpus
        self._table = new_table()
        self._splits = 0

    def run(self) -> Answer:
        """All of PP and micro-batch; both ends of a pipeline hold a block."""
        meter, layers = self._meter, self._numbers.layers
        for pp in range(1, min(layers // 2, sum(self._gpus.values())) + 1):
            cuts = even_cuts(layers, pp)
            for size in self._numbers.micro_batches:
                chosen = tp_degrees(
                    self._numbers, self._degrees, size, cuts, as_released=self._as_released
                )
                if chosen and not self._all_dp(cuts, size, chosen):
                    return meter.answer()
        return meter.answer()

    def _all_dp(self, cuts: tuple[int, ...], size: int, chosen: dict[str, tuple[int, ...]]) -> bool:
        """Every DP worth a look; whether the search goes on."""
        total = self._question.workload.global_batch // size
        least = min(min(row) for row in chosen.values())
        most = min(total, sum(self._gpus[kind] for kind in chosen) // (least * (len(cuts) - 1)))
        before_s, micro_batches = np.inf, 0
        for dp in range(most, 0, -1):
            if -(-total // dp) == micro_batches:
                continue
            micro_batches = -(-total // dp)
            if not self._meter.goes_on():
                return False
            own_s, rows = self._best(cuts, size, chosen, dp, micro_batches)
            if rows is not None:
                self._meter.offer(own_s, partial(self._laid_out, cuts, size, chosen, rows))
                if own_s > before_s:
                    return True
                before_s = own_s
        return True

    def _best(
        self,
        cuts: tuple[int, ...],
        size: int,
        chosen: dict[str, tuple[int, ...]],
        dp: int,
        micro_batches: int,
    ) -> tuple[float, list[tuple[int, ...]] | None]:
        """Seconds, and for each stage how many replicas run on each type; None if none fits."""
        types, stages = sorted(chosen), len(cuts) - 1
        tp = np.array([[chosen[kind][s] for kind in types] for s in range(stages)], np.int64)
        seconds = np.array(
            [
                [
                    stage_seconds(self._numbers, kind, chosen[kind][s], size, cuts[s], cuts[s + 1])
                    for kind in types
                ]
                for s in range(stages)
            ]
        )
        rings, p2p = self._links(types, cuts, size, dp)
        left = np.array([self._gpus[kind] for kind in types], np.int64)
        self._table[0].fill(-1)
        counters = np.array([0, self._allowed(), 0, left.max() + 1], np.int64)
        slot = solve(0, left, tp, seconds, rings, p2p, dp, micro_batches, self._table, counters)
        self._meter.priced += int(counters[:2].min())
        if slot < 0 or counters[0] > counters[1]:
            return np.inf, None
        known = self._table[1][slot]
        own_s = (micro_batches - 1) * known[MOST] + known[SUM] + known[P2P] + known[RING]
        rows = []
        for stage in range(stages):
            split = self._table[2][slot][: len(types)]
            rows.append(tuple(int(count) for count in split))
            left = left - split * tp[stage]
            if stage + 1 < stages:
                arguments = (tp, seconds, rings, p2p, dp, micro_batches, self._table, counters)
                slot = solve(stage + 1, left, *arguments)
        if stages == 1:
            own_s += self._update_s(types, tp, rows[0])
        return float(own_s), rows

    def _allowed(self) -> int:
        """Splits that may be priced now."""
        meter = self._meter
        rate = max(FIRST_RATE, meter.priced / max(meter.passed_s, 1e-9))
        by_time = rate * (meter.budget.seconds - meter.passed_s)
        return int(max(0, min(meter.budget.evaluations - meter.priced, by_time, 2**62)))

    def _links(
        self, types: list[str], cuts: tuple[int, ...], size: int, dp: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradient sums by stage and types, and one message by types, in seconds."""
        numbers, masks = self._numbers, 1 << len(types)
        rates = [np.inf]
        for mask in range(1, masks):
            kinds = [kind for t, kind in enumerate(types) if mask >> t & 1]
            rates.append(min(numbers.between(a, b) for a in kinds for b in kinds))
        rate = np.array(rates)
        whole = [sum(numbers.parameters(1)[a:b]) * numbers.value_bytes for a, b in pairwise(cuts)]
        rings = np.zeros((len(whole), masks))
        for stage, num_bytes in enumerate(whole):
            rings[stage] = ring_seconds(num_bytes, dp, rate)
        return rings, 2 * numbers.boundary_bytes(size) / rate

    def _update_s(self, types: list[str], tp: np.ndarray, split: tuple[int, ...]) -> float:
        """Of the optimizer, which the formula has for one stage only."""
        profile = self._question.profile
        return max(
            profile.gpu_type(kind).optimizer_s_per_parameter
            * sum(self._numbers.parameters(int(degree)))
            for kind, degree, count in zip(types, tp[0], split, strict=True)
            if count
        )

    def _laid_out(
        self,
        cuts: tuple[int, ...],
        size: int,
        chosen: dict[str, tuple[int, ...]],
        rows: list[tuple[int, ...]],
    ) -> Layout:
        """Replicas of a stage take the types in the order of their names."""
        types, question = sorted(chosen), self._question
        asked = [
            (kind, chosen[kind][s])
            for s, row in enumerate(rows)
            for kind, count in zip(types, row, strict=True)
            for _ in range(count)
        ]
        gpus = carve(question.composition, asked)
        assert gpus is not None, "TP degrees divide the nodes"
        dp = sum(rows[0])
        stages = []
        for s, blocks in enumerate(blocks_of(cuts)):
            part = range(s * dp, (s + 1) * dp)
            groups = tuple(Group(asked[i][0], gpus[i], size) for i in part)
            stages.append(GridStage(blocks, groups))
        total = question.workload.global_batch // size
        grid = Grid(tuple(stages), shares_of(total, dp))
        return Layout((grid,), self._numbers.recompute)


def ring_seconds(num_bytes: float, members: int, rate: np.ndarray) -> np.ndarray:
    """A sum in buckets: 2 (n - 1) steps of an n-th of each."""
    if members == 1:
        return np.zeros_like(rate)
    full, rest = divmod(num_bytes, BUCKET_BYTES)
    volume = full * (BUCKET_BYTES / members) + rest / members
    return 2 * (members - 1) * volume / rate
