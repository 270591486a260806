"""Metis' prices: stages of mixed GPU types, memory, and the iteration.

A stage of several types splits each micro-batch over its replicas by their speed with one sample;
a share that no profile holds is priced as a sum of powers of two.  The profile has no gap between
layers and a whole pass, and no batch generator, so that both terms are 0 here.
Source: Um et al., Metis, USENIX ATC 2024; the factor of memory is the release's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from benchmarks.baselines.layout import Gpu
from benchmarks.baselines.quantities import Quantities

MEMORY_FACTOR = 5.0  # times the memory of weights and activations of one micro-batch
OPTIMIZER_PASSES = 2  # optimizer time is doubled when it is read


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """One stage with its GPUs, before it has layers."""

    types: tuple[str, ...]  # GPU type of each replica
    samples: tuple[int, ...]  # of a micro-batch, of each replica
    tp: int
    sums_s: tuple[float, ...]  # seconds of the first layers, of the slowest replica; L + 3 sums
    sums_bytes: tuple[float, ...]  # demand of the first layers, all replicas; L + 3 sums
    capacity: int  # memory of all its GPUs
    rate: float  # bytes per second of its slowest link

    def seconds(self, start: int, stop: int) -> float:
        """Of layers [start, stop) for one micro-batch."""
        return self.sums_s[stop] - self.sums_s[start]

    def demand(self, start: int, stop: int) -> float:
        """Bytes of layers [start, stop)."""
        return self.sums_bytes[stop] - self.sums_bytes[start]


class Stages:
    """Stages of one order of the GPUs."""

    def __init__(
        self, numbers: Quantities, gpus: Sequence[tuple[str, Gpu]], *, as_released: bool
    ) -> None:
        self._numbers, self._as_released = numbers, as_released
        self._types = [gpu_type for gpu_type, _ in gpus]
        self._nodes = [gpu[0] for _, gpu in gpus]
        self.most_tp = {
            gpu_type: max(numbers.tp_degrees(gpu_type, len(gpus))) for gpu_type in set(self._types)
        }
        self.most_samples = max(numbers.micro_batches)
        self.work = cache(self._work)

    def _work(self, first: int, gpus: int, tp: int, samples: int) -> StageWork | None:
        """The stage on GPUs [first, first + gpus); None if it cannot run there.

        It cannot where a TP group would cross nodes, or a degree is not profiled.
        """
        starts = range(first, first + gpus, tp)
        if any(self._nodes[start] != self._nodes[start + tp - 1] for start in starts):
            return None
        types = tuple(self._types[start] for start in starts)
        if any(tp not in self._numbers.tp_degrees(kind, 1 << 30) for kind in set(types)):
            return None
        given = self.balanced(types, tp, samples)
        pairs = sorted({(kind, count) for kind, count in zip(types, given, strict=True) if count})
        times = [self._times(kind, tp, count) for kind, count in pairs]
        slowest = max(times, key=sum)
        demands = self._demands(types, given, tp)
        nodes = {self._nodes[start] for start in starts}
        rate = (
            self._numbers.inside(types[0])
            if len(nodes) == 1
            else min(self._numbers.between(a, b) for a in set(types) for b in set(types))
        )
        return StageWork(
            types=types,
            samples=given,
            tp=tp,
            sums_s=(0.0, *accumulate(slowest)),
            sums_bytes=(0.0, *accumulate(demands)),
            capacity=sum(
                self._numbers.memory_bytes(self._types[r]) for r in range(first, first + gpus)
            ),
            rate=rate,
        )

    def balanced(self, types: Sequence[str], tp: int, samples: int) -> tuple[int, ...]:
        """Samples of each replica, by its speed with one sample."""
        if len(set(types)) == 1:
            return (samples // len(types),) * len(types)
        speed = [1 / sum(self._numbers.layer_seconds(kind, tp, 1)) for kind in types]
        exact = [samples * one / sum(speed) for one in speed]
        given = [int(part) for part in exact]
        by_rest = sorted(range(len(types)), key=lambda r: (given[r] - exact[r], r))
        for r in by_rest[: samples - sum(given)]:
            given[r] += 1
        return tuple(given)

    def _times(self, gpu_type: str, tp: int, samples: int) -> tuple[float, ...]:
        """Seconds by layer, of powers of two that sum to the samples."""
        most = self.most_samples
        parts = [most] * (samples // most)
        parts += [1 << k for k in range(most.bit_length()) if samples % most >> k & 1]
        rows = [self._numbers.layer_seconds(gpu_type, tp, part) for part in parts]
        return tuple(map(sum, zip(*rows, strict=True)))

    def _demands(self, types: Sequence[str], given: Sequence[int], tp: int) -> tuple[float, ...]:
        """Bytes by layer: of all replicas, as released of one with the first type's profile."""
        numbers = self._numbers
        if self._as_released:
            types, given = (self._types[0],), (max(given),)
        total = [0.0] * numbers.layers
        for kind in set(types):
            for count in {c for k, c in zip(types, given, strict=True) if k == kind}:
                number = sum((k, c) == (kind, count) for k, c in zip(types, given, strict=True))
                profiled = min(self.most_samples, 1 << max(0, (max(count, 1) - 1).bit_length()))
                kept = numbers.activation_bytes(kind, tp, profiled)
                for layer, weights in enumerate(numbers.parameters(tp)):
                    held = weights * numbers.value_bytes + kept[layer]
                    total[layer] += number * MEMORY_FACTOR * held * tp
        return tuple(total)


def iteration_seconds(
    numbers: Quantities,
    stages: Sequence[StageWork],
    cuts: Sequence[int],
    micro_batches: int,
    *,
    as_released: bool,
) -> float:
    """Metis' formula: pipeline, optimizer, gradient sum and transfers."""
    times = [one.seconds(cuts[s], cuts[s + 1]) for s, one in enumerate(stages)]
    profile, layers = numbers.question.profile, numbers.layers
    optimizer_s = sync_s = transfer_s = 0.0
    samples = sum(stages[0].samples)
    size = 1 if as_released else numbers.value_bytes
    message = numbers.boundary_bytes(samples) / numbers.value_bytes * size
    whole = sum(numbers.parameters(1))
    for s, one in enumerate(stages):
        count = cuts[s + 1] - cuts[s]
        step_s = max(profile.gpu_type(kind).optimizer_s_per_parameter for kind in set(one.types))
        optimizer_s = max(optimizer_s, OPTIMIZER_PASSES * step_s * whole / one.tp * count / layers)
        dp = len(one.types)
        held = sum(numbers.parameters(one.tp)[cuts[s] : cuts[s + 1]]) * numbers.value_bytes
        sync_s = max(sync_s, 2 * (dp - 1) / (dp * one.rate) * held)
        if s:
            transfer_s += message / min(one.rate, stages[s - 1].rate)
    return (micro_batches - 1) * max(times) + sum(times) + optimizer_s + sync_s + transfer_s
