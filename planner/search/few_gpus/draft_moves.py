"""Every plan one step from a placed plan: another fill of a stage, or another node for it.

Invariant: no step gives a GPU twice or makes a TP group cross a node; the templates' stages and
their number of replicas stay (`planner.search.neighbourhood` changes those).
Source: design, section 2 (local search on whole plans).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from planner.cluster.composition import Composition
from planner.search.few_gpus.draft import Draft, Drafts, Way
from planner.search.fill import Option

Slot = tuple[int, int, int]  # template, replica, stage


class StageSeat(NamedTuple):
    """A stage of a replica and its node."""

    slot: Slot
    option: Option
    node: int


def _with(drafts: Drafts, t: int, draft: Draft) -> Drafts:
    return (*drafts[:t], draft, *drafts[t + 1 :])


def fill_moves(
    drafts: Drafts, ways: Mapping[Option, Sequence[Way]], sizes: Sequence[int]
) -> Iterator[Drafts]:
    """Another way of a stage or of all, a layer that moves, another micro-batch.

    Args:
        drafts: the plan.
        ways: of each option.
        sizes: micro-batches.
    """
    for t, draft in enumerate(drafts):
        depth = len(draft.structure)
        for changed in _other_ways(draft, ways):
            yield _with(drafts, t, draft._replace(ways=changed))
        for b in sizes:
            if b != draft.micro_batch:
                yield _with(drafts, t, draft._replace(micro_batch=b))
        for giver, taker in permutations(range(depth), 2):
            if draft.layers[giver] > 1:
                layers = list(draft.layers)
                layers[giver] -= 1
                layers[taker] += 1
                yield _with(drafts, t, draft._replace(layers=tuple(layers)))
    if len(drafts) > 1:
        for b in sizes:
            yield tuple(draft._replace(micro_batch=b) for draft in drafts)


def split_moves(
    drafts: Drafts, ways: Mapping[Option, Sequence[Way]], sizes: Sequence[int]
) -> Iterator[Drafts]:
    """Some replicas of a template that take another way or micro-batch than the rest."""
    for t, draft in enumerate(drafts):
        for rest, part in _parts(draft):
            for b in sizes:
                if b != draft.micro_batch:
                    yield (*_with(drafts, t, rest), part._replace(micro_batch=b))
            for changed in _other_ways(part, ways):
                yield (*_with(drafts, t, rest), part._replace(ways=changed))


def _parts(draft: Draft) -> Iterator[tuple[Draft, Draft]]:
    """The template without some of its replicas, and these."""
    replicas = len(draft.where)
    known = set()
    for count in range(1, replicas):
        for first in range(replicas - count + 1):
            part = draft.where[first : first + count]
            rest = draft.where[:first] + draft.where[first + count :]
            if (rest, part) not in known:
                known.add((rest, part))
                yield draft._replace(where=rest), draft._replace(where=part)


def _other_ways(draft: Draft, ways: Mapping[Option, Sequence[Way]]) -> Iterator[tuple[Way, ...]]:
    for s, option in enumerate(draft.structure):
        for way in ways[option]:
            if way != draft.ways[s]:
                yield (*draft.ways[:s], way, *draft.ways[s + 1 :])
    if len(draft.structure) > 1:
        for way in dict.fromkeys(way for option in draft.structure for way in ways[option]):
            if all(way in ways[option] for option in draft.structure):
                yield (way,) * len(draft.structure)


def placement_moves(drafts: Drafts, composition: Composition) -> Iterator[Drafts]:
    """Nodes or stages that change places, stages that move to idle GPUs, replicas that swap."""
    nodes = composition.nodes
    free = [node.gpus for node in nodes]
    seats: list[StageSeat] = []
    for t, draft in enumerate(drafts):
        for r, where in enumerate(draft.where):
            for s, ((_, tp), node) in enumerate(zip(draft.structure, where, strict=True)):
                seats.append(StageSeat((t, r, s), draft.structure[s], node))
                free[node] -= tp
    yield from _node_swaps(drafts, composition, free)
    yield from _stage_swaps(drafts, seats)
    for seat in seats:
        for node, room in enumerate(free):
            gpu_type, tp = seat.option
            if node != seat.node and nodes[node].gpu_type == gpu_type and room >= tp:
                yield _moved(drafts, {seat.slot: node})
    for t, draft in enumerate(drafts):  # neighbours share experts, so the order counts
        for one, other in combinations(range(len(draft.where) if draft.is_tiled else 0), 2):
            if draft.where[one] != draft.where[other]:
                rows = list(draft.where)
                rows[one], rows[other] = rows[other], rows[one]
                yield _with(drafts, t, draft._replace(where=tuple(rows)))


def _node_swaps(drafts: Drafts, composition: Composition, free: Sequence[int]) -> Iterator[Drafts]:
    """All that two nodes hold changes places."""
    nodes = composition.nodes
    used = [node.gpus - left for node, left in zip(nodes, free, strict=True)]
    for one, other in combinations(range(len(nodes)), 2):
        alike = nodes[one].gpu_type == nodes[other].gpu_type
        fits = used[one] <= nodes[other].gpus and used[other] <= nodes[one].gpus
        if alike and fits and used[one] + used[other]:
            swap = {one: other, other: one}
            yield tuple(
                draft._replace(
                    where=tuple(
                        tuple([swap.get(node, node) for node in where]) for where in draft.where
                    )
                )
                for draft in drafts
            )


def _stage_swaps(drafts: Drafts, seats: Sequence[StageSeat]) -> Iterator[Drafts]:
    """Two equal stages change places, or a stage and two of half its GPUs."""
    for one, other in combinations(seats, 2):
        if one.option == other.option and one.node != other.node:
            yield _moved(drafts, {one.slot: other.node, other.slot: one.node})
    for whole in seats:
        gpu_type, tp = whole.option
        halves = [
            seat
            for seat in seats
            if seat.option == (gpu_type, tp // 2) and tp % 2 == 0 and seat.node != whole.node
        ]
        for one, other in combinations(halves, 2):
            if one.node == other.node:
                home = whole.node
                yield _moved(drafts, {whole.slot: one.node, one.slot: home, other.slot: home})


def _moved(drafts: Drafts, homes: Mapping[Slot, int]) -> Drafts:
    rows = [[list(where) for where in draft.where] for draft in drafts]
    for (t, r, s), node in homes.items():
        rows[t][r][s] = node
    return tuple(
        draft._replace(where=tuple(map(tuple, row)))
        for draft, row in zip(drafts, rows, strict=True)
    )
