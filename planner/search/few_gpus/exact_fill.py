"""First fills of a placed plan: what a descent through fills starts from.

For each micro-batch and each way of the experts: the layers go, one after the other, to the stage
that is then done first.
Invariant: every stage holds at least one layer, and no more than fit.
Source: Heddle, section 5.3 (layer split).   Legend: b micro-batch, D stages, n replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil, inf

from planner.model.workload import Workload
from planner.search.few_gpus.draft import Drafts, Way
from planner.search.few_gpus.exact_pricing import ExactPrices, StagePlace, StageTerms
from planner.search.fill import Counts, Option, Structure

KEPT = 3  # fills of a template with one micro-batch


Fill = tuple[tuple[int, ...], tuple[Way, ...]]  # layers and ways of each stage


class FirstFills:
    """First fills of the templates of one search, found once each."""

    def __init__(
        self,
        workload: Workload,
        prices: ExactPrices,
        ways: Mapping[Option, Sequence[Way]],
        sizes: Sequence[int],
    ) -> None:
        """Prepare.

        Args:
            workload: model and batch.
            prices: of stages.
            ways: of each option.
            sizes: micro-batches.
        """
        self._workload, self._prices = workload, prices
        self._ways, self._sizes = ways, sizes
        self._known: dict[tuple[Structure, int, int, int], list[Fill]] = {}

    def of(self, drafts: Drafts) -> Iterator[Drafts]:
        """A few fills of all templates with each micro-batch; none if a template does not fit.

        Args:
            drafts: placed.
        """
        counts = tuple((draft.structure, len(draft.where)) for draft in drafts)
        for b, rows in self._rows(counts):
            for rank in range(max(map(len, rows))):
                yield tuple(
                    draft._replace(micro_batch=b, layers=layers, ways=ways)
                    for draft, row in zip(drafts, rows, strict=True)
                    for layers, ways in (row[min(rank, len(row) - 1)],)
                )

    def fit(self, counts: Counts) -> bool:
        """Whether every template of a bag has a fill with the same micro-batch."""
        return next(self._rows(counts), None) is not None

    def _rows(self, counts: Counts) -> Iterator[tuple[int, list[list[Fill]]]]:
        """(b, fills of each template) for each micro-batch that all have."""
        pipelines = sum(replicas for _, replicas in counts)
        for b in self._sizes:
            rounds = ceil(self._workload.global_batch / (b * pipelines))
            rows = [self._fills(structure, n, b, rounds) for structure, n in counts]
            if all(rows):
                yield b, rows

    def _fills(self, structure: Structure, replicas: int, b: int, rounds: int) -> list[Fill]:
        """Fills with one way on all stages, those of the fastest blocks that fit."""
        key = (structure, replicas, b, rounds)
        if key not in self._known:
            found: list[Fill] = []
            for ways in self._ranked(structure, replicas, b):
                for least in dict.fromkeys((min(rounds, len(structure)), 1)):
                    layers = _split(
                        structure,
                        self._prices,
                        ways,
                        b,
                        self._workload.model.layers,
                        replicas,
                        least,
                    )
                    if layers is not None:
                        found.append((layers, ways))
                        break
                if len(found) == KEPT:
                    break
            self._known[key] = found
        return self._known[key]

    def _ranked(self, structure: Structure, replicas: int, b: int) -> list[tuple[Way, ...]]:
        """One way for all stages that know it, in the order of the pace of their blocks."""
        paces: dict[tuple[Way, ...], float] = {}
        for wanted in dict.fromkeys(way for option in structure for way in self._ways[option]):
            ways = tuple(
                wanted if wanted in self._ways[option] else self._ways[option][0]
                for option in structure
            )
            blocks_s = [
                self._prices.block_s(option, b, way, replicas)
                for option, way in zip(structure, ways, strict=True)
            ]
            if max(blocks_s) < inf:
                paces[ways] = -sum(1 / block_s for block_s in blocks_s)
        return sorted(paces, key=lambda ways: (paces[ways], ways))


def _split(
    structure: Structure,
    prices: ExactPrices,
    ways: Sequence[Way],
    b: int,
    layers: int,
    replicas: int,
    least: int,
) -> tuple[int, ...] | None:
    """Layers of each stage; None if `least` micro-batches do not fit with them."""
    depth = len(structure)
    if depth > layers:
        return None

    def terms(s: int, count: int) -> StageTerms:
        return prices.stage_terms(
            StagePlace(structure[s], b, depth - s, s == 0, s + 1, count, ways[s], replicas)
        )

    def fits(s: int, count: int) -> bool:
        return terms(s, count).most >= min(least, depth - s)

    one_s = [terms(s, 1).work_s for s in range(depth)]
    if max(one_s) == inf or not all(fits(s, 1) for s in range(depth)):
        return None
    block_s = [terms(s, 2).work_s - first_s for s, first_s in enumerate(one_s)]
    caps = [layers] * depth
    while sum(caps) >= layers:
        blocks = _dealt(one_s, block_s, caps, layers)
        over = [s for s in range(depth) if not fits(s, blocks[s])]
        if not over:
            return blocks
        for s in over:
            caps[s] = _most(partial(fits, s), blocks[s])
    return None


def _most(fits: Callable[[int], bool], count: int) -> int:
    """The most blocks that fit, where one does and `count` do not."""
    low = 1
    while count - low > 1:
        middle = (low + count) // 2
        if fits(middle):
            low = middle
        else:
            count = middle
    return low


def _dealt(
    one_s: Sequence[float], block_s: Sequence[float], caps: Sequence[int], layers: int
) -> tuple[int, ...]:
    """Blocks of each stage: one after the other goes to the stage that is done first with it."""
    blocks = [1] * len(caps)
    after = [first_s + more_s for first_s, more_s in zip(one_s, block_s, strict=True)]
    for s, cap in enumerate(caps):
        if cap == 1:
            after[s] = inf
    for _ in range(layers - len(caps)):
        s = after.index(min(after))
        blocks[s] += 1
        after[s] = after[s] + block_s[s] if blocks[s] < caps[s] else inf
    return tuple(blocks)
