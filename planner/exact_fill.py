"""First fills of a placed plan: what a descent through fills starts from.

For each micro-batch and each way of the experts: the layers go, one after the other, to the stage
that is then done first.
Invariant: every stage holds at least one layer, and no more than fit.
Source: Heddle, section 5.3 (layer split).   Legend: b micro-batch, D stages, n replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf

from planner.draft import Draft, Drafts, Way
from planner.exact_pricing import ExactPrices
from planner.fill import Option
from planner.workload import Workload

KEPT = 3  # fills of a template with one micro-batch


def first_fills(
    drafts: Drafts,
    prices: ExactPrices,
    ways: Mapping[Option, Sequence[Way]],
    sizes: Sequence[int],
    workload: Workload,
) -> Iterator[Drafts]:
    """A few fills of all templates with each micro-batch; none if a template does not fit.

    Args:
        drafts: placed.
        prices: of stages.
        ways: of each option.
        sizes: micro-batches.
        workload: model and batch.
    """
    pipelines = sum(len(draft.where) for draft in drafts)
    for b in sizes:
        rounds = ceil(workload.global_batch / (b * pipelines))
        rows = []
        for draft in drafts:
            found = sorted(_of_template(draft, prices, ways, b, rounds, workload.model.layers))
            rows.append([filled for _, filled in found[:KEPT]])
        if all(rows):
            for rank in range(max(map(len, rows))):
                yield tuple(row[min(rank, len(row) - 1)] for row in rows)


def _of_template(
    draft: Draft,
    prices: ExactPrices,
    ways: Mapping[Option, Sequence[Way]],
    b: int,
    rounds: int,
    layers: int,
) -> Iterator[tuple[float, Draft]]:
    """(about the seconds of a replica, filled template) with each way on all stages, or the best."""
    depth, replicas = len(draft.structure), len(draft.where)
    every = dict.fromkeys(way for option in draft.structure for way in ways[option])
    for wanted in every:
        chosen = tuple(
            wanted if wanted in ways[option] else ways[option][0] for option in draft.structure
        )
        for least in dict.fromkeys((min(rounds, depth), 1)):
            split = _split(draft, prices, chosen, b, layers, replicas, least)
            if split is not None:
                blocks, times = split
                filled = draft._replace(micro_batch=b, layers=blocks, ways=chosen)
                yield (rounds - 1) * max(times) + sum(times), filled
                break


def _split(
    draft: Draft,
    prices: ExactPrices,
    ways: Sequence[Way],
    b: int,
    layers: int,
    replicas: int,
    least: int,
) -> tuple[tuple[int, ...], list[float]] | None:
    """Layers of each stage and its seconds; None if `least` micro-batches do not fit with them."""
    depth = len(draft.structure)
    if depth > layers:
        return None

    def seconds(s: int, count: int) -> float:
        terms = prices.stage_terms(
            draft.structure[s], b, depth, s, s + 1, count, ways[s], replicas
        )
        return terms.work_s if terms.most >= min(least, depth - s) else inf

    blocks = [1] * depth
    times = [seconds(s, 1) for s in range(depth)]
    if max(times) == inf:
        return None
    after = [seconds(s, 2) for s in range(depth)]
    for _ in range(layers - depth):
        s = min(range(depth), key=lambda stage: (after[stage], stage))
        if after[s] == inf:
            return None
        blocks[s] += 1
        times[s] = after[s]
        after[s] = seconds(s, blocks[s] + 1)
    return tuple(blocks), times
