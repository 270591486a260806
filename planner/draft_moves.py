"""Every plan one step from a placed plan: another fill of a stage, or another node for it.

Invariant: no step gives a GPU twice or makes a TP group cross a node; the templates' stages and
their number of replicas stay (`planner.neighbourhood` changes those).
Source: design, section 2 (local search on whole plans).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations

from planner.composition import Composition
from planner.draft import Draft, Drafts, Way
from planner.fill import Option

Slot = tuple[int, int, int]  # template, replica, stage


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


def _other_ways(
    draft: Draft, ways: Mapping[Option, Sequence[Way]]
) -> Iterator[tuple[Way, ...]]:
    for s, option in enumerate(draft.structure):
        for way in ways[option]:
            if way != draft.ways[s]:
                yield (*draft.ways[:s], way, *draft.ways[s + 1 :])
    if len(draft.structure) > 1:
        for way in dict.fromkeys(way for option in draft.structure for way in ways[option]):
            if all(way in ways[option] for option in draft.structure):
                yield (way,) * len(draft.structure)


def placement_moves(drafts: Drafts, composition: Composition) -> Iterator[Drafts]:
    """Stages that change places, or move to idle GPUs."""
    free = [node.gpus for node in composition.nodes]
    types = [node.gpu_type for node in composition.nodes]
    slots: list[tuple[Slot, Option, int]] = []
    for t, draft in enumerate(drafts):
        for r, where in enumerate(draft.where):
            for s, (option, node) in enumerate(zip(draft.structure, where, strict=True)):
                slots.append(((t, r, s), option, node))
                free[node] -= option[1]
    used = [node.gpus - left for node, left in zip(composition.nodes, free, strict=True)]
    for one, other in combinations(range(len(free)), 2):  # all that two nodes hold
        if types[one] == types[other] and used[one] + used[other]:
            if used[one] <= used[other] + free[other] and used[other] <= used[one] + free[one]:
                swap = {one: other, other: one}
                yield tuple(
                    draft._replace(
                        where=tuple(tuple([swap.get(n, n) for n in w]) for w in draft.where)
                    )
                    for draft in drafts
                )
    for one, other in combinations(slots, 2):
        if one[1] == other[1] and one[2] != other[2]:
            yield _moved(drafts, {one[0]: other[2], other[0]: one[2]})
    for slot, (gpu_type, tp), home in slots:
        for node, room in enumerate(free):
            if node != home and types[node] == gpu_type and room >= tp:
                yield _moved(drafts, {slot: node})
    for slot, (gpu_type, tp), home in slots:
        for first, second in combinations(slots, 2):  # a large group for two small ones
            if (
                first[2] == second[2] != home
                and first[1][0] == second[1][0] == gpu_type
                and first[1][1] + second[1][1] == tp
            ):
                yield _moved(drafts, {slot: first[2], first[0]: home, second[0]: home})
    for t, draft in enumerate(drafts):  # whole replicas; their order counts with experts
        if draft.is_tiled:
            for a, b in combinations(range(len(draft.where)), 2):
                if draft.where[a] != draft.where[b]:
                    rows = list(draft.where)
                    rows[a], rows[b] = rows[b], rows[a]
                    yield _with(drafts, t, draft._replace(where=tuple(rows)))


def _moved(drafts: Drafts, homes: Mapping[Slot, int]) -> Drafts:
    rows = [[list(where) for where in draft.where] for draft in drafts]
    for (t, r, s), node in homes.items():
        rows[t][r][s] = node
    return tuple(
        draft._replace(where=tuple(map(tuple, row)))
        for draft, row in zip(drafts, rows, strict=True)
    )
