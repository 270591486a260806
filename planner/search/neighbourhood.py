"""The templates that a search starts from, and the steps it takes from one plan to the next.

A plan is, before its fill, a bag of structures with replica counts (`Counts`).  The order of the
stages of a structure is free, replica counts are free, and GPUs may stay idle.
Source: research on local search over whole plans; Heddle, section 5.1 (template).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product

from planner.cluster.composition import Composition
from planner.model.shape import ModelShape
from planner.placement.place import Room, can_pack
from planner.profiles.profile import Profile
from planner.search.fill import Counts, Option, Structure

MIXED_DEPTH = 3  # up to here every sequence of options is a start; deeper ones come by steps


def options(composition: Composition, model: ModelShape, profile: Profile) -> tuple[Option, ...]:
    """Every (GPU type, TP degree) that is profiled, cuts the model evenly, and fits on a node."""
    largest: dict[str, int] = {}
    for node in composition.nodes:
        largest[node.gpu_type] = max(largest.get(node.gpu_type, 0), node.gpus)
    return tuple(
        (gpu_type, tp)
        for gpu_type in sorted(largest)
        for tp in profile.tp_degrees(gpu_type)
        if tp <= largest[gpu_type] and model.allows_tp(tp)
    )


def structures(choices: Sequence[Option], deepest: int, room: Room) -> Iterator[Structure]:
    """Templates to start from, shallow ones first: all mixed ones up to depth 3, and even ones."""
    for depth in range(1, deepest + 1):
        mixed = product(choices, repeat=depth) if depth <= MIXED_DEPTH else ()
        even = ((choice,) * depth for choice in choices) if depth > MIXED_DEPTH else ()
        for structure in (*mixed, *even):
            if packs(((structure, 1),), room):
                yield structure


def packs(counts: Counts, room: Room) -> bool:
    """Whether all replicas find room."""
    groups: dict[Option, int] = {}
    for structure, replicas in counts:
        for option in structure:
            groups[option] = groups.get(option, 0) + replicas
    return can_pack(groups, room)


def canonical(rows: Iterable[tuple[Structure, int]]) -> Counts:
    """The one form of a bag of structures: merged, without zeros, sorted."""
    merged: Counter[Structure] = Counter()
    for structure, replicas in rows:
        merged[structure] += replicas
    return tuple(sorted((s, n) for s, n in merged.items() if n > 0))


def adjacent(
    counts: Counts,
    choices: Sequence[Option],
    pool: Sequence[Structure],
    deepest: int,
    room: Room,
) -> Iterator[Counts]:
    """Every bag one step from a bag that packs, each once.

    Args:
        counts: the bag.
        choices: every option that a stage may have.
        pool: structures that may take the room of others.
        deepest: most stages.
        room: of the nodes.
    """
    known = {counts}
    for step in _steps(counts, choices, pool, deepest, room):
        bag = canonical(step)
        if bag and bag not in known:
            known.add(bag)
            if packs(bag, room):
                yield bag


def _steps(
    counts: Counts,
    choices: Sequence[Option],
    pool: Sequence[Structure],
    deepest: int,
    room: Room,
) -> Iterator[list[tuple[Structure, int]]]:
    """More or fewer replicas, changed stages of all or of one, other templates in their room."""
    for index, (structure, replicas) in enumerate(counts):
        rest = [*counts[:index], *counts[index + 1 :]]
        yield [*rest, (structure, replicas + 1)]
        yield [*rest, (structure, replicas - 1)]
        for other in every_change(structure, choices, deepest):
            yield [*rest, (other, replicas)]
            if replicas > 1:
                yield [*rest, (structure, replicas - 1), (other, 1)]
    for index in range(-1, len(counts)):
        structure, replicas = counts[index] if index >= 0 else ((), 0)
        rest = [row for at, row in enumerate(counts) if at != index]
        for kept in range(replicas - 1, -1, -1) if replicas else (0,):
            base = [*rest, (structure, kept)] if structure else list(counts)
            for other in pool:
                most = 0
                while packs(canonical([*base, (other, most + 1)]), room):
                    most += 1
                for added in range(most, 0, -1):
                    yield [*base, (other, added)]


def every_change(
    structure: Structure, choices: Sequence[Option], deepest: int
) -> Iterator[Structure]:
    """The structure with one stage replaced, removed or added, or with two swapped."""
    depth = len(structure)
    for s in range(depth):
        for option in choices:
            yield (*structure[:s], option, *structure[s + 1 :])
        if depth > 1:
            yield (*structure[:s], *structure[s + 1 :])
    if depth < deepest:
        for s in range(depth + 1):
            for option in choices:
                yield (*structure[:s], option, *structure[s:])
    for one, other in combinations(range(depth), 2):
        stages = list(structure)
        stages[one], stages[other] = stages[other], stages[one]
        yield tuple(stages)
