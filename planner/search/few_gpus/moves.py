"""Every candidate one step from a placed one: another fill, depth or node of a stage.

Invariant: no step gives a GPU twice or makes a TP group cross a node; the number of replicas stays
(`planner.search.few_gpus.templates` changes it, and stages in every other way).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations

from planner.cluster.composition import Composition
from planner.search.few_gpus.placed_candidate import Configuration, PlacedCandidate, PlacedTemplate
from planner.search.fill import Option

Configurations = Mapping[Option, Sequence[Configuration]]  # that a stage of each option may have
Position = tuple[int, int, int]  # template, replica, stage


def _with(candidate: PlacedCandidate, t: int, one: PlacedTemplate) -> PlacedCandidate:
    return (*candidate[:t], one, *candidate[t + 1 :])


def fill_moves(
    candidate: PlacedCandidate, configurations: Configurations, sizes: Sequence[int]
) -> Iterator[PlacedCandidate]:
    """Another configuration of a stage or of all, a layer that moves, another micro-batch."""
    for t, one in enumerate(candidate):
        for changed in _reconfigured(one, configurations):
            yield _with(candidate, t, changed)
        for b in sizes:
            if b != one.micro_batch:
                yield _with(candidate, t, one._replace(micro_batch=b))
        for giver, taker in permutations(range(len(one.layers)), 2):
            if one.layers[giver] > 1:
                layers = list(one.layers)
                layers[giver] -= 1
                layers[taker] += 1
                yield _with(candidate, t, one._replace(layers=tuple(layers)))
    if len(candidate) > 1:
        for b in sizes:
            yield tuple(one._replace(micro_batch=b) for one in candidate)


def depth_moves(
    candidate: PlacedCandidate, configurations: Configurations, deepest: int
) -> Iterator[PlacedCandidate]:
    """Two equal stages of a node joined to one of twice their TP degree, or a stage halved.

    All replicas of a template change, and keep their GPUs; so do the layers on these.
    """
    for t, one in enumerate(candidate):
        for s, (option, layers) in enumerate(zip(one.structure, one.layers, strict=True)):
            gpu_type, tp = option
            double, half = (gpu_type, 2 * tp), (gpu_type, tp // 2)
            is_pair = one.structure[s + 1 : s + 2] == (option,)
            if is_pair and double in configurations and all(w[s] == w[s + 1] for w in one.where):
                both = layers + one.layers[s + 1]
                yield _with(candidate, t, _restaged(one, s, s + 2, double, (both,), configurations))
            can_halve = tp % 2 == 0 and layers > 1 and len(one.structure) < deepest
            if can_halve and half in configurations:
                parts = layers - layers // 2, layers // 2
                yield _with(candidate, t, _restaged(one, s, s + 1, half, parts, configurations))


def _restaged(
    one: PlacedTemplate,
    first: int,
    end: int,
    option: Option,
    layers: tuple[int, ...],
    configurations: Configurations,
) -> PlacedTemplate:
    """Stages of an option with these layers, in place of those from `first` to before `end`."""
    own, known = one.configurations[first], configurations[option]
    configuration = own if own in known else known[0]
    depth = len(layers)
    return one._replace(
        structure=(*one.structure[:first], *(option,) * depth, *one.structure[end:]),
        layers=(*one.layers[:first], *layers, *one.layers[end:]),
        configurations=(
            *one.configurations[:first],
            *(configuration,) * depth,
            *one.configurations[end:],
        ),
        where=tuple((*w[:first], *(w[first],) * depth, *w[end:]) for w in one.where),
    )


def split_moves(
    candidate: PlacedCandidate, configurations: Configurations, sizes: Sequence[int]
) -> Iterator[PlacedCandidate]:
    """Some replicas of a template that take another configuration or micro-batch than the rest."""
    for t, one in enumerate(candidate):
        for rest, part in _parts(one):
            for b in sizes:
                if b != one.micro_batch:
                    yield (*_with(candidate, t, rest), part._replace(micro_batch=b))
            for changed in _reconfigured(part, configurations):
                yield (*_with(candidate, t, rest), changed)


def _parts(one: PlacedTemplate) -> Iterator[tuple[PlacedTemplate, PlacedTemplate]]:
    """The template without some neighbouring replicas, and these."""
    replicas = len(one.where)
    splits = {
        (one.where[:first] + one.where[first + count :], one.where[first : first + count]): None
        for count in range(1, replicas)
        for first in range(replicas - count + 1)
    }
    for rest, part in splits:
        yield one._replace(where=rest), one._replace(where=part)


def _reconfigured(one: PlacedTemplate, configurations: Configurations) -> Iterator[PlacedTemplate]:
    """Another configuration of one stage, or one that all stages know for all of them."""
    own = one.configurations
    for s, option in enumerate(one.structure):
        for other in configurations[option]:
            if other != own[s]:
                yield one._replace(configurations=(*own[:s], other, *own[s + 1 :]))
    if len(own) > 1:
        for other in configurations[one.structure[0]]:
            if all(other in configurations[option] for option in one.structure):
                yield one._replace(configurations=(other,) * len(own))


def placement_moves(
    candidate: PlacedCandidate, composition: Composition, twins: Sequence[Sequence[int]] = ()
) -> Iterator[PlacedCandidate]:
    """Nodes or stages that change places, stages that move to idle GPUs, replicas that swap.

    Of idle nodes that are alike (`twins` of each node, ascending) the first stands for all.
    """
    nodes = composition.nodes
    free = [node.gpus for node in nodes]
    stages: list[tuple[Position, Option, int]] = []
    for t, one in enumerate(candidate):
        for r, where in enumerate(one.where):
            for s, (option, node) in enumerate(zip(one.structure, where, strict=True)):
                stages.append(((t, r, s), option, node))
                free[node] -= option[1]
    is_used = [left < node.gpus for node, left in zip(nodes, free, strict=True)]
    others = [
        index
        for index in range(len(nodes))
        if not twins
        or is_used[index]
        or index == next(node for node in twins[index] if not is_used[node])
    ]
    yield from _node_swaps(candidate, composition, free, others)
    yield from _stage_swaps(candidate, stages)
    for position, (gpu_type, tp), home in stages:
        for node in others:
            if node != home and nodes[node].gpu_type == gpu_type and free[node] >= tp:
                yield _moved(candidate, {position: node})
    for t, one in enumerate(candidate):  # neighbours share experts, so the order counts
        for first, second in combinations(range(len(one.where) if one.is_tiled else 0), 2):
            if one.where[first] != one.where[second]:
                rows = list(one.where)
                rows[first], rows[second] = rows[second], rows[first]
                yield _with(candidate, t, one._replace(where=tuple(rows)))


def _node_swaps(
    candidate: PlacedCandidate, composition: Composition, free: Sequence[int], which: Sequence[int]
) -> Iterator[PlacedCandidate]:
    """All that two nodes hold changes places, of those in question."""
    nodes = composition.nodes
    used = [node.gpus - left for node, left in zip(nodes, free, strict=True)]
    for one, other in combinations(which, 2):
        alike = nodes[one].gpu_type == nodes[other].gpu_type
        fits = used[one] <= nodes[other].gpus and used[other] <= nodes[one].gpus
        if alike and fits and used[one] + used[other]:
            swap = {one: other, other: one}
            yield tuple(
                template._replace(
                    where=tuple(
                        tuple([swap.get(node, node) for node in where]) for where in template.where
                    )
                )
                for template in candidate
            )


def _stage_swaps(
    candidate: PlacedCandidate, stages: Sequence[tuple[Position, Option, int]]
) -> Iterator[PlacedCandidate]:
    """Two equal stages change places, or a stage and two of half its GPUs."""
    for (one, option, here), (other, same, there) in combinations(stages, 2):
        if option == same and here != there:
            yield _moved(candidate, {one: there, other: here})
    for whole, (gpu_type, tp), here in stages:
        halves = [
            (position, node)
            for position, option, node in stages
            if option == (gpu_type, tp // 2) and tp % 2 == 0 and node != here
        ]
        for (one, there), (other, beside) in combinations(halves, 2):
            if there == beside:
                yield _moved(candidate, {whole: there, one: here, other: here})


def _moved(candidate: PlacedCandidate, homes: Mapping[Position, int]) -> PlacedCandidate:
    rows = [[list(where) for where in one.where] for one in candidate]
    for (t, r, s), node in homes.items():
        rows[t][r][s] = node
    return tuple(
        one._replace(where=tuple(map(tuple, row))) for one, row in zip(candidate, rows, strict=True)
    )
