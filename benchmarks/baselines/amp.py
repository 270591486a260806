"""AMP: all TP, DP and micro-batch sizes, with the best cut of the layers into stages for each.

TP divides a node, DP what is left, the micro-batch the batch of a replica; PP follows.  Ranks stand
in one order over the listed nodes (stage, replica, slot).  A layer costs the same on every GPU: the
mean over types, weighted by their GPUs, of three forward passes of one sample, times the
micro-batch.  A dynamic programme over cuts minimises sum + (M - 1) max + messages; in a decoder all
messages between layers are alike, so that it is the smallest possible bottleneck.  There is no
memory rule.  Weights of a block count 12 h^2, those of embedding and head h V.
As released, DP is priced by the link of the last two neighbours; as described, by the slowest.
Nodes of several sizes are read as nodes of one GPU.
Source: Li et al., AMP, NeurIPS 2022.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise

from benchmarks.baselines.interface import Answer, Budget, Meter, Question
from benchmarks.baselines.layout import Grid, GridStage, Group, Layout, listed_gpus
from benchmarks.baselines.quantities import (
    Quantities,
    blocks_of,
    divisors,
    require_profiled,
    uniform_reading,
)

FORWARD_PASSES = 3  # of both passes together: a backward pass counts two
BLOCK_WEIGHTS = 12  # h^2 of a block


def plan(question: Question, budget: Budget, *, as_released: bool = False) -> Answer:
    """Every candidate, ranked.

    Raises:
        InvalidComposition: there is no GPU.
        UnprofiledConfiguration: a GPU type has no profile.
    """
    require_profiled(question)
    reading, node_gpus = uniform_reading(question.composition)
    numbers, meter = Quantities(question), Meter(budget)
    batch, gpus = question.workload.global_batch, question.composition.gpus
    ranks = [gpu_type for gpu_type, _ in listed_gpus(question.composition)]
    nodes = [gpu[0] for _, gpu in listed_gpus(reading)]
    for tp, dp, size in candidates(node_gpus, gpus, batch):
        pp = gpus // (tp * dp)
        if tp not in _tp_degrees(numbers, node_gpus) or pp > question.workload.model.layers:
            continue
        if not meter.goes_on():
            break
        costs = layer_costs(numbers, tp)
        micro_batches = batch // (dp * size)
        bounds = partition(costs, pp, uniform=micro_batches == 1)
        stage_s = [size * sum(costs[a:b]) for a, b in pairwise(bounds)]
        grid = _Ranks(ranks, nodes, tp, dp, pp)
        cuts_s = sum(
            numbers.boundary_bytes(size) / grid.edge(numbers, stage) for stage in range(pp - 1)
        )
        sync_s = max(
            _sync_s(numbers, grid, stage, bounds, as_released=as_released) for stage in range(pp)
        )
        own_s = (micro_batches - 1) * max(stage_s) + sum(stage_s) + cuts_s + sync_s
        meter.priced += 1
        meter.offer(own_s, partial(_laid_out, question, (tp, dp, pp), size, bounds))
    return meter.answer()


def candidates(node_gpus: int, gpus: int, batch: int) -> list[tuple[int, int, int]]:
    """(TP, DP, micro-batch) in the order of the search."""
    return [
        (tp, dp, size)
        for tp in divisors(node_gpus)
        for dp in divisors(gpus // tp)
        if batch % dp == 0
        for size in divisors(batch // dp)
    ]


def _tp_degrees(numbers: Quantities, node_gpus: int) -> set[int]:
    types = numbers.question.composition.gpu_types
    return set.intersection(*(set(numbers.tp_degrees(one, node_gpus)) for one in types))


def layer_costs(numbers: Quantities, tp: int) -> tuple[float, ...]:
    """Seconds of each layer for one sample, averaged over the GPUs."""
    counts = Counter(gpu_type for gpu_type, _ in listed_gpus(numbers.question.composition))
    total = counts.total()
    rows = [
        [FORWARD_PASSES * s * count / total for s in numbers.forward_seconds(gpu_type, tp, 1)]
        for gpu_type, count in sorted(counts.items())
    ]
    return tuple(map(sum, zip(*rows, strict=True)))


def partition(costs: Sequence[float], stages: int, *, uniform: bool = False) -> tuple[int, ...]:
    """Cuts of the layers with the smallest bottleneck; cuts of even counts where that is asked.

    Both ends hold at least a block beside the embedding or the head.
    """
    layers = len(costs)
    if stages == 1:
        return (0, layers)
    if uniform:
        inner = [round(s * (layers - 2) / stages) + 1 for s in range(1, stages)]
        return (0, *inner, layers)
    sums = [0.0, *accumulate(costs)]
    bottlenecks = sorted(
        {sums[b] - sums[a] for a in range(layers) for b in range(a + 1, layers + 1)}
    )
    first = bisect_left(bottlenecks, True, key=lambda most: _fill(sums, stages, most) is not None)
    found = _fill(sums, stages, bottlenecks[first])
    assert found is not None
    return found


def _fill(sums: Sequence[float], stages: int, most: float) -> tuple[int, ...] | None:
    """Cuts whose stages take no longer than that, each as full as it can be; None if none do."""
    layers = len(sums) - 1
    cuts = [0]
    for stage in range(stages):
        start, left = cuts[-1], stages - stage - 1
        least = start + (2 if stage == 0 else 1)
        stop = layers if left == 0 else layers - left - 1  # the last one has two
        while stop >= least and sums[stop] - sums[start] > most * (1 + 1e-12):
            stop -= 1
        if stop < least or (left == 0 and stop < layers):
            return None
        cuts.append(stop)
    return tuple(cuts)


class _Ranks:
    """The default order of ranks over the listed nodes: stage, replica, slot."""

    def __init__(self, types: list[str], nodes: list[str], tp: int, dp: int, pp: int) -> None:
        self.types, self.nodes, self.tp, self.dp, self.pp = types, nodes, tp, dp, pp

    def of(self, stage: int, replica: int) -> int:
        """The first rank of a TP group."""
        return (stage * self.dp + replica) * self.tp

    def link(self, numbers: Quantities, one: int, other: int) -> float:
        """Bytes per second between two ranks."""
        if self.nodes[one] == self.nodes[other]:
            return numbers.inside(self.types[one])
        return numbers.between(self.types[one], self.types[other])

    def edge(self, numbers: Quantities, stage: int) -> float:
        """The slowest link between a stage and the next."""
        return min(
            self.link(numbers, self.of(stage, r), self.of(stage + 1, r)) for r in range(self.dp)
        )

    def rings(self, numbers: Quantities, stage: int) -> list[float]:
        """The links between neighbouring replicas of a stage."""
        starts = [self.of(stage, r) for r in range(self.dp)]
        return [self.link(numbers, a, b) for a, b in pairwise([*starts, starts[0]])]


def _sync_s(
    numbers: Quantities, grid: _Ranks, stage: int, bounds: Sequence[int], *, as_released: bool
) -> float:
    if grid.dp == 1:
        return 0.0
    links = grid.rings(numbers, stage)
    rate = links[-1] if as_released else min(links)
    model = numbers.question.workload.model
    blocks = blocks_of(bounds)[stage]
    ends = (stage == 0) + (stage == grid.pp - 1)
    weights = BLOCK_WEIGHTS * model.hidden**2 * blocks + ends * model.hidden * model.vocab
    return 2 * (grid.dp - 1) / (grid.dp * rate) * weights / grid.tp * numbers.value_bytes


def _laid_out(
    question: Question, degrees: tuple[int, int, int], size: int, bounds: tuple[int, ...]
) -> Layout:
    tp, dp, pp = degrees
    gpus = listed_gpus(question.composition)
    stages = []
    for stage, blocks in enumerate(blocks_of(bounds)):
        groups = []
        for replica in range(dp):
            first = (stage * dp + replica) * tp
            chosen = gpus[first : first + tp]
            groups.append(Group(chosen[0][0], tuple(gpu for _, gpu in chosen), size))
        stages.append(GridStage(blocks, tuple(groups)))
    assert len(stages) == pp
    micro_batches = question.workload.global_batch // (dp * size)
    grid = Grid(tuple(stages), (micro_batches,) * dp)
    return Layout((grid,), Quantities(question).recompute)
