"""Metis' search: type orders, stage counts, device groups, micro-batches; DP before TP in each.

Source: Um et al., Metis, USENIX ATC 2024.   Legend: S stages, M micro-batches, L blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, permutations

from benchmarks.baselines.interface import Answer, Budget, Meter, Question
from benchmarks.baselines.layout import Gpu, Grid, GridStage, Group, Layout, listed_gpus
from benchmarks.baselines.metis.costs import Stages, StageWork, iteration_seconds
from benchmarks.baselines.metis.device_groups import Groups, multisets, orders
from benchmarks.baselines.metis.layer_split import ATTEMPTS, moved, rescaled, split
from benchmarks.baselines.quantities import Quantities, blocks_of, divisors, require_profiled

VARIANCE = 0.5  # of group sizes; the value that others use, as the release reads whole numbers only
MOST_LENGTH = 10  # groups that are permuted; the release's value for large clusters


def plan(
    question: Question,
    budget: Budget,
    *,
    variance: float = VARIANCE,
    most_length: int = MOST_LENGTH,
    as_released: bool = False,
) -> Answer:
    """Every plan that the budget reaches, ranked.

    Raises:
        InvalidComposition: there is no GPU.
        UnprofiledConfiguration: a GPU type has no profile.
    """
    require_profiled(question)
    meter, numbers = Meter(budget), Quantities(question)
    layers, total = question.workload.model.layers, question.composition.gpus
    for types in permutations(question.composition.gpu_types):
        gpus = listed_gpus(question.composition, types)
        order = _Order(numbers, gpus, meter, as_released)
        for count in range(1, min(total, layers) + 1):
            for multiset in multisets(total, count, variance):
                for groups in orders(multiset, most_length):
                    if not order.try_groups(groups):
                        return meter.answer()
    return meter.answer()


class _Order:
    """The search on one order of the GPUs."""

    def __init__(
        self,
        numbers: Quantities,
        gpus: Sequence[tuple[str, Gpu]],
        meter: Meter,
        as_released: bool,
    ) -> None:
        self._numbers, self._gpus, self._meter = numbers, gpus, meter
        self._as_released = as_released
        self._stages = Stages(numbers, gpus, as_released=as_released)
        seconds = numbers.layer_seconds(gpus[0][0], 1, 1)
        self._weights = [one / sum(seconds) for one in seconds]

    def try_groups(self, groups: Groups) -> bool:
        """All micro-batches of these groups; whether the search goes on."""
        batch = self._numbers.question.workload.global_batch
        firsts = (0, *accumulate(groups[:-1]))
        for samples in divisors(batch):  # of a micro-batch of all replicas: M falls from B
            for degrees in self._strategies(groups, firsts, samples):
                if not self._meter.goes_on():
                    return False
                if self._priced(groups, firsts, degrees, samples):
                    break
        return True

    def _strategies(
        self, groups: Groups, firsts: Sequence[int], samples: int
    ) -> Iterator[list[StageWork]]:
        """Stages with TP 1, then with more TP where memory is shortest; only those that run."""
        tp = [1] * len(groups)
        while True:
            smallest = samples // max(g // t for g, t in zip(groups, tp, strict=True))
            largest = max(-(-samples * t // g) for g, t in zip(groups, tp, strict=True))
            if largest > self._stages.most_samples:
                return
            works = [
                self._stages.work(first, g, t, samples) if smallest else None
                for first, g, t in zip(firsts, groups, tp, strict=True)
            ]
            if all(works):
                yield works  # type: ignore[misc]
            free = [s for s, (g, t) in enumerate(zip(groups, tp, strict=True)) if g > t]
            if not free:
                return
            chosen = min(
                free, key=lambda s: (self._slack(works[s], len(groups)), -groups[s] // tp[s], s)
            )
            tp[chosen] *= 2
            if tp[chosen] > self._stages.most_tp[self._gpus[firsts[chosen]][0]]:
                return

    def _slack(self, work: StageWork | None, stages: int) -> float:
        """Memory left of a stage that holds an even part of the layers, as a share."""
        if work is None:
            return -1.0
        return 1 - work.demand(0, self._numbers.layers) / stages / work.capacity

    def _priced(
        self, groups: Groups, firsts: Sequence[int], works: list[StageWork], samples: int
    ) -> bool:
        """Price a strategy if it fits; whether it did so at the first attempt."""
        self._meter.priced += 1
        layers, numbers = self._numbers.layers, self._numbers
        speeds = [1 / work.seconds(0, layers) for work in works]
        shares = tuple(speed / sum(speeds) for speed in speeds)
        for attempt in range(ATTEMPTS + 1):  # noqa: B007  (asked for at the end)
            cuts = split(self._weights, shares)
            cuts = moved(cuts, lambda s, a, b: works[s].seconds(a, b))
            demands = [work.demand(cuts[s], cuts[s + 1]) for s, work in enumerate(works)]
            capacities = [work.capacity for work in works]
            if all(want <= have for want, have in zip(demands, capacities, strict=True)):
                break
            shares = rescaled(shares, demands, capacities)
        else:
            return False
        if min(blocks_of(cuts)) >= 1:
            micro_batches = numbers.question.workload.global_batch // samples
            own_s = iteration_seconds(
                numbers, works, cuts, micro_batches, as_released=self._as_released
            )
            laid_out = partial(self._laid_out, groups, firsts, works, cuts, micro_batches)
            self._meter.offer(own_s, laid_out)
        return attempt == 0

    def _laid_out(
        self,
        groups: Groups,
        firsts: Sequence[int],
        works: list[StageWork],
        cuts: Sequence[int],
        micro_batches: int,
    ) -> Layout:
        stages = []
        for s, blocks in enumerate(blocks_of(cuts)):
            work, found = works[s], []
            for r, samples in enumerate(work.samples):
                first = firsts[s] + r * work.tp
                gpus = tuple(gpu for _, gpu in self._gpus[first : first + work.tp])
                found.append(Group(work.types[r], gpus, samples))
            stages.append(GridStage(blocks, tuple(found)))
        replicas = max(len(stage.groups) for stage in stages)
        grid = Grid(tuple(stages), (micro_batches,) * replicas)
        return Layout((grid,), self._numbers.recompute)
