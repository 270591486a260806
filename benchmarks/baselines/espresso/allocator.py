"""Espresso's allocator: a best-first tree over the number of stages of each GPU type.

A quick plan of one repeated type is the first bound.  Depth of the tree is a GPU type, a branch the
number of stages that it gets; the key is an optimistic time: all work over the speed of all stages,
those that are left as fast as the fastest type, with the bubble of an even pipeline.  A node is
pruned where that is no better than the best plan, or where memory cannot hold the model.  DP goes
from high to low: with as many GPUs as here the bound of one replica prunes nothing.
Source: Zhou et al., Espresso, INFOCOM 2025.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from heapq import heappop, heappush

from benchmarks.baselines.espresso.placer import BACKWARD, Placed, Placer
from benchmarks.baselines.interface import Answer, Budget, Meter, Question
from benchmarks.baselines.layout import Grid, GridStage, Group, Layout, carve
from benchmarks.baselines.quantities import Quantities, require_profiled


def plan(question: Question, budget: Budget) -> Answer:
    """Every plan that the tree prices, ranked.

    Raises:
        InvalidComposition: there is no GPU.
        UnprofiledConfiguration: a GPU type has no profile.
    """
    require_profiled(question)
    numbers = Quantities(question)
    load(numbers)
    meter, batch = Meter(budget), question.workload.global_batch
    search = _Allocator(question, numbers, meter)
    most = question.composition.gpus.bit_length() - 1
    for dp in (1 << power for power in range(most, -1, -1)):
        for size in numbers.micro_batches:
            if batch % (dp * size) == 0 and not search.try_dp(size, dp):
                return meter.answer()
    return meter.answer()


def load(numbers: Quantities) -> None:
    """Load what numba has compiled, once a process: no part of a budget."""
    kind = numbers.question.composition.gpu_types[0]
    placer = Placer(numbers, numbers.micro_batches[0], 1)
    placer.micro_batches = 1
    placer.seconds(Placed(((kind, placer.blocks),)))


class _Allocator:
    def __init__(self, question: Question, numbers: Quantities, meter: Meter) -> None:
        self._question, self._numbers, self._meter = question, numbers, meter
        self._stock = Counter[str]()
        for node in question.composition.nodes:
            self._stock[node.gpu_type] += node.gpus
        self._best_s = float("inf")  # of any plan so far: the bound of all trees

    def try_dp(self, size: int, dp: int) -> bool:
        """All depths of one DP; whether the search goes on."""
        placer = Placer(self._numbers, size, dp)
        types = [kind for kind in sorted(self._stock) if self._stock[kind] >= dp]
        deepest = min(placer.blocks, sum(self._stock[kind] // dp for kind in types))
        least = [
            next((pp for pp in range(1, deepest + 1) if placer.fits(kind, pp)), 0) for kind in types
        ]
        known = [pp for pp in least if pp]
        if not known:
            return True
        for pp in range(min(known), max(max(known), min(known) + 1)):
            for kind in types:  # the quick plans
                if self._stock[kind] // dp >= pp and not self._leaf(placer, {kind: pp}):
                    return False
            if not self._tree(placer, types, pp):
                return False
        return True

    def _tree(self, placer: Placer, types: list[str], pp: int) -> bool:
        caps = [self._stock[kind] // placer.dp for kind in types]
        heap: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        while heap:
            bound_s, chosen = heappop(heap)
            if bound_s >= self._best_s:
                return True  # the rest is no better
            if len(chosen) == len(types):
                counts = {kind: n for kind, n in zip(types, chosen, strict=True) if n}
                if len(counts) > 1 and not self._leaf(placer, counts):
                    return False
                continue
            left = pp - sum(chosen)
            is_last = len(chosen) == len(types) - 1
            for number in range(left if is_last else 0, min(left, caps[len(chosen)]) + 1):
                key_s = optimistic_seconds(placer, types, (*chosen, number), pp)
                if key_s < self._best_s:
                    heappush(heap, (key_s, (*chosen, number)))
        return True

    def _leaf(self, placer: Placer, counts: Mapping[str, int]) -> bool:
        """Place and price; whether the search goes on."""
        for placed in placer.placements(counts):
            if not self._meter.goes_on():
                return False
            self._meter.priced += 1
            own_s = placer.seconds(placed)
            self._best_s = min(self._best_s, own_s)
            self._meter.offer(own_s, partial(self._laid_out, placed, placer.size, placer.dp))
        return True

    def _laid_out(self, placed: Placed, size: int, dp: int) -> Layout:
        """Replica by replica on the GPUs as they are listed."""
        asked = [(kind, 1) for _ in range(dp) for kind, _ in placed.stages]
        gpus = carve(self._question.composition, asked)
        assert gpus is not None, "stages fit the stock"
        depth = len(placed.stages)
        stages = tuple(
            GridStage(blocks, tuple(Group(kind, gpus[r * depth + s], size) for r in range(dp)))
            for s, (kind, blocks) in enumerate(placed.stages)
        )
        micro_batches = self._question.workload.global_batch // (size * dp)
        return Layout((Grid(stages, (micro_batches,) * dp),), self._numbers.recompute)


def optimistic_seconds(
    placer: Placer, types: list[str], chosen: tuple[int, ...], depth: int
) -> float:
    """An even pipeline of these stages, the rest as fast as the fastest type, with its bubble."""
    times = [placer.forward_s(kind) for kind in types]
    speed = sum(n / one for n, one in zip(chosen, times, strict=False))
    speed += (depth - sum(chosen)) / min(times)
    work_s = placer.blocks * (1 + BACKWARD) / speed
    return (placer.micro_batches + depth - 1) * work_s
