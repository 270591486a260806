"""Every split of the layers among the stages, plainly enumerated, and problems to try it on.

`best_split` asks a cost function for each stage, so that it knows nothing of what a layer is: costs
may be linear, any table that grows with the number of layers, or depend on where a stage begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from random import Random
from typing import NamedTuple

MICRO_BATCHES = (1, 2, 4, 16)
MOST_LAYERS = 10
MOST_DEPTH = 5

Cost = Callable[[int, int, int], float]  # (stage, its first layer from 0, number of layers): s


class Split(NamedTuple):
    """The best of all splits."""

    seconds: float
    layers: tuple[int, ...]


def every_split(depth: int, layers: int) -> Iterator[tuple[int, ...]]:
    """Every vector of `depth` positive numbers that sum to `layers`."""
    for cuts in combinations(range(1, layers), depth - 1):
        yield tuple(stop - start for start, stop in pairwise((0, *cuts, layers)))


def stage_times(cost: Cost, split: Sequence[int]) -> list[float]:
    """Seconds of each stage."""
    firsts = (0, *accumulate(split))
    return [cost(stage, firsts[stage], n) for stage, n in enumerate(split)]


def pipeline_s(times: Sequence[float], micro_batches: int) -> float:
    """(M - 1) max + sum."""
    return (micro_batches - 1) * max(times) + sum(times)


def best_split(costs: Cost, caps: Sequence[int], layers: int, micro_batches: int) -> Split | None:
    """The fastest split; the smallest vector of those that are equally fast.

    Args:
        costs: seconds of a stage.
        caps: most layers of each stage.
        layers: L.
        micro_batches: M.

    Returns:
        None where no split keeps to the caps.
    """
    return min(
        (
            Split(pipeline_s(stage_times(costs, split), micro_batches), split)
            for split in every_split(len(caps), layers)
            if all(n <= cap for n, cap in zip(split, caps, strict=True))
        ),
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCase:
    """One splitting problem.

    Attributes:
        name: what is special about it.
        costs: seconds of a stage.
        caps: most layers of each stage.
        layers: L.
        block_s: seconds of one block on each stage, where costs are linear; else empty.
        other_s: what each stage takes besides, where costs are linear; else empty.
        dense: layers of another kind, which come first.
    """

    name: str
    costs: Cost
    caps: tuple[int, ...]
    layers: int
    block_s: tuple[float, ...] = ()
    other_s: tuple[float, ...] = ()
    dense: int = 0


def _sizes() -> Iterator[tuple[int, int]]:
    for layers in range(1, MOST_LAYERS + 1):
        for depth in range(1, min(layers + 1, MOST_DEPTH) + 1):  # one stage too many as well
            yield layers, depth


def _caps(random: Random, layers: int, depth: int) -> tuple[int, ...]:
    """Free, tight, or impossible ones; a stage may hold nothing."""
    kind = random.randrange(4)
    if kind == 0:
        return (layers,) * depth
    least = 0 if kind == 3 else 1
    return tuple(random.randint(least, max(1, 2 * layers // depth)) for _ in range(depth))


def linear_cases(seed: int) -> Iterator[SplitCase]:
    """Layers of one kind on stages of different speed; embedding, head and messages besides."""
    for layers, depth in _sizes():
        random = Random(f"linear/{seed}/{layers}/{depth}")
        rough = random.random() < 0.3  # whole numbers: many splits are equally fast
        if rough:
            block = [random.choice((1.0, 1.0, 2.0)) for _ in range(depth)]
            other = [float(random.randint(0, 2)) for _ in range(depth)]
        else:
            block = [random.uniform(0.2, 2) for _ in range(depth)]
            other = [random.uniform(0, 0.5) for _ in range(depth)]
        other[-1] += 2.0 if rough else random.uniform(0.5, 3)  # the head
        yield SplitCase(
            name=f"linear, {layers} layers on {depth} stages",
            costs=lambda stage, _, n, block=block, other=other: other[stage] + block[stage] * n,
            caps=_caps(random, layers, depth),
            layers=layers,
            block_s=tuple(block),
            other_s=tuple(other),
        )


def table_cases(seed: int) -> Iterator[SplitCase]:
    """Any cost that grows with the number of layers."""
    for layers, depth in _sizes():
        random = Random(f"table/{seed}/{layers}/{depth}")
        tables = [
            list(accumulate(random.choice((0.1, random.random())) for _ in range(layers + 1)))
            for _ in range(depth)
        ]
        yield SplitCase(
            name=f"tables, {layers} layers on {depth} stages",
            costs=lambda stage, _, n, tables=tables: tables[stage][n],
            caps=_caps(random, layers, depth),
            layers=layers,
        )


def kind_cases(seed: int) -> Iterator[SplitCase]:
    """Dense blocks before the others: what a layer costs depends on where it is."""
    for layers, depth in _sizes():
        random = Random(f"kinds/{seed}/{layers}/{depth}")
        dense = random.randint(0, layers)
        prices = [(random.uniform(0.2, 2), random.uniform(0.2, 4)) for _ in range(depth)]
        head_s = random.uniform(0, 2)

        def cost(
            stage: int,
            first: int,
            n: int,
            *,
            dense: int = dense,
            prices: list[tuple[float, float]] = prices,
            last: tuple[int, float] = (depth - 1, head_s),
        ) -> float:
            before = max(0, min(first + n, dense) - first)
            one_s, other_s = prices[stage]
            return before * one_s + (n - before) * other_s + (last[1] if stage == last[0] else 0.0)

        yield SplitCase(
            name=f"{dense} dense layers of {layers} on {depth} stages",
            costs=cost,
            caps=_caps(random, layers, depth),
            layers=layers,
            dense=dense,
        )
