"""HexiScale's rounds: cut into pipelines, lay each out, price all, change their number by one.

Source: Yan et al., HexiScale, MLSys 2026.   Legend: P pipelines, L blocks, B global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

import numpy as np

from benchmarks.baselines.hexiscale.partition import cut
from benchmarks.baselines.hexiscale.pipeline import (
    BLOCK_WEIGHTS,
    TypedStage,
    layers_by_memory,
    pipeline_seconds,
    shaped,
)
from benchmarks.baselines.interface import Answer, Budget, Meter, Question
from benchmarks.baselines.layout import Grid, GridStage, Group, Layout, listed_gpus, shares_of
from benchmarks.baselines.quantities import Quantities, require_profiled
from planner.cluster.gpu_types import find_gpu

ROUNDS = 40  # at least, as it is run on clusters of this size
GPUS_A_PIPELINE = 8  # at the start
LEAST_GPUS = 5  # of a pipeline
SAMPLES = 2  # of a micro-batch: fixed by the pipelines at the start
FURTHER_GROUPS, GROUP_CHANCE = 2, 0.2  # groups of a pipeline: 1 + binomial
PIPELINE_FACTOR, SYNC_FACTOR = 1.8, 1.1  # of its prices
SYNC_MESSAGES = 2


def plan(question: Question, budget: Budget, *, as_released: bool = False) -> Answer:
    """The plan of every round whose pipelines fit, ranked; rounds try every number of pipelines.

    Raises:
        InvalidComposition: there is no GPU.
        UnprofiledConfiguration: a GPU type has no profile.
    """
    require_profiled(question)
    meter = Meter(budget)
    asked = Quantities(question).recompute
    rounds = [_Rounds(question, as_released, how) for how in dict.fromkeys((asked, "full"))]
    total, layers = question.composition.gpus, question.workload.model.layers
    least = min(total, total // layers + 1)
    most = max(least, total // LEAST_GPUS)
    parts = min(most, max(least, total // GPUS_A_PIPELINE))
    left, done = set(range(least, most + 1)), 0
    while left or done < ROUNDS:
        left.discard(parts)
        done += 1
        for each in rounds:
            if not meter.goes_on():
                return meter.answer()
            meter.priced += 1
            found = each.cut_into(parts)
            if found is not None:
                own_s, pipelines = found
                meter.offer(own_s, partial(each.laid_out, pipelines))
        parts = min(most, max(least, parts + int(rounds[0].random.choice((-1, 1)))))
    return meter.answer()


_Pipeline = tuple[tuple[TypedStage, ...], tuple[int, ...]]  # stages, and blocks of each


class _Rounds:
    def __init__(self, question: Question, as_released: bool, recomputed: str) -> None:
        self._question, self._as_released = question, as_released
        self._numbers = Quantities(question, recomputed)
        self.random = np.random.default_rng(question.seed)
        self._gpus = listed_gpus(question.composition)
        self._flops = np.array([find_gpu(kind).matrix_flops_s for kind, _ in self._gpus])
        self._rates = self._links()
        batch = question.workload.global_batch
        self._samples = SAMPLES if batch % SAMPLES == 0 else 1

    def _links(self) -> np.ndarray:
        """Bytes per second between any two GPUs; 0 on the diagonal."""
        types = sorted({kind for kind, _ in self._gpus})
        index = np.array([types.index(kind) for kind, _ in self._gpus])
        nodes = {name: n for n, name in enumerate(dict.fromkeys(gpu[0] for _, gpu in self._gpus))}
        node = np.array([nodes[gpu[0]] for _, gpu in self._gpus])
        between = np.array([[self._numbers.between(a, b) for b in types] for a in types])
        inside = np.array([self._numbers.inside(kind) for kind in types])
        rates = between[index[:, None], index[None, :]]
        rates = np.where(node[:, None] == node[None, :], inside[index][:, None], rates)
        np.fill_diagonal(rates, 0.0)
        return rates

    def cut_into(self, parts: int) -> tuple[float, tuple[_Pipeline, ...]] | None:
        """Seconds and pipelines; None if one of them is over its memory."""
        with np.errstate(divide="ignore"):
            slowness = np.where(self._rates > 0, 1 / self._rates, 0.0)
        part = cut(self._flops, slowness / slowness.max(initial=1e-30), parts, self.random)
        pipelines = []
        for index in range(parts):
            found = self._pipeline(np.flatnonzero(part == index))
            if found is None:
                return None
            pipelines.append(found)
        return self._seconds(pipelines), tuple(pipelines)

    def _pipeline(self, members: np.ndarray) -> _Pipeline | None:
        """Stages and blocks of the GPUs of one pipeline."""
        groups = 1 + int(self.random.binomial(FURTHER_GROUPS, GROUP_CHANCE))
        groups = min(groups, len(members))
        rates = self._rates[np.ix_(members, members)]
        part = cut(self._flops[members], rates / rates.max(initial=1e-30), groups, self.random)
        rows = [members[part == index] for index in range(groups)]
        total, layers = len(members), self._question.workload.model.layers
        stages: list[TypedStage] = []
        for row in self._path(rows):
            gpus = [self._gpus[i] for i in row]
            for _, machine in groupby(gpus, key=lambda gpu: gpu[1][0]):
                own = list(machine)
                blocks = max(1, layers * len(own) // total)
                stages += shaped(self._numbers, own, blocks, self._samples)
        if len(stages) > layers:
            return None
        held = layers_by_memory(self._numbers, stages, self._samples)
        return None if held is None else (tuple(stages), held)

    def _path(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Groups in the order of a greedy path over the links between them."""
        left = list(rows)
        path = [left.pop(0)]
        while left:
            rates = [self._rates[np.ix_(path[-1], row)].max() for row in left]
            chosen = int(np.argmin(rates) if self._as_released else np.argmax(rates))
            path.append(left.pop(chosen))
        return path

    def _seconds(self, pipelines: Sequence[_Pipeline]) -> float:
        micro_batches = self._micro_batches(len(pipelines))
        rows = [(one, self._samples, m) for one, m in zip(pipelines, micro_batches, strict=True)]
        return plan_seconds(self._numbers, rows)

    def _micro_batches(self, count: int) -> tuple[int, ...]:
        return shares_of(self._question.workload.global_batch // self._samples, count)

    def laid_out(self, pipelines: Sequence[_Pipeline]) -> Layout:
        """Each pipeline is a grid of one replica."""
        grids = []
        for (stages, blocks), micro_batches in zip(
            pipelines, self._micro_batches(len(pipelines)), strict=True
        ):
            rows = tuple(
                GridStage(have, (Group(stage.gpu_type, stage.gpus, self._samples),))
                for stage, have in zip(stages, blocks, strict=True)
            )
            grids.append(Grid(rows, (micro_batches,)))
        return Layout(tuple(grids), self._numbers.recompute)


def plan_seconds(numbers: Quantities, rows: Sequence[tuple[_Pipeline, int, int]]) -> float:
    """The slowest pipeline and the gradient sum, of (pipeline, micro-batch, M) rows."""
    slowest = max(
        pipeline_seconds(numbers, stages, blocks, samples, micro_batches)
        for (stages, blocks), samples, micro_batches in rows
    )
    sync_s = _sync_s(numbers, [one for one, _, _ in rows])
    return PIPELINE_FACTOR * slowest + SYNC_FACTOR * sync_s


def _sync_s(numbers: Quantities, pipelines: Sequence[_Pipeline]) -> float:
    """The gradient sum, layer by layer over all pipelines; the slowest link counts."""
    count = len(pipelines)
    if count == 1:
        return 0.0
    model = numbers.question.workload.model
    weights = BLOCK_WEIGHTS * model.hidden**2 * numbers.value_bytes
    total = 0.0
    for layer in range(model.layers):
        holders = [_holder(stages, blocks, layer) for stages, blocks in pipelines]
        types = sorted({stage.gpu_type for stage in holders})
        rate = min(numbers.between(a, b) for a in types for b in types)
        tp = min(stage.tp for stage in holders)
        total += SYNC_MESSAGES * weights / (tp * count * rate) * (count - 1)
    return total


def _holder(stages: Sequence[TypedStage], blocks: Sequence[int], layer: int) -> TypedStage:
    cuts = np.cumsum(blocks)
    return stages[int(np.searchsorted(cuts, layer, side="right"))]
