"""Sets of templates before their fill, and every set one step from another.

The order of the stages of a template is free, replica counts are free, and GPUs may stay idle; no
set exceeds the limits on GPUs.
Source: Heddle, section 5.1 (template); local search over whole plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product

from planner.cluster.gpu_limits import UNLIMITED, GpuLimits
from planner.placement.place import Room, can_pack
from planner.search.few_gpus.placed_candidate import PlacedCandidate
from planner.search.fill import Option, Structure

Counts = tuple[tuple[Structure, int], ...]  # templates with their number of replicas

MIXED_DEPTH = 3  # up to here every sequence of options is a start; deeper ones come by steps


def starts(
    choices: Sequence[Option], deepest: int, room: Room, max_gpus: GpuLimits = UNLIMITED
) -> Iterator[Counts]:
    """Every set of one template, shallow ones first: mixed up to depth 3, deeper even ones."""
    for depth in range(1, deepest + 1):
        if depth <= MIXED_DEPTH:
            structures: Iterable[Structure] = product(choices, repeat=depth)
        else:
            structures = ((choice,) * depth for choice in choices)
        for structure in structures:
            replicas = 1
            while packs(((structure, replicas),), room, max_gpus):
                yield ((structure, replicas),)
                replicas += 1


def packs(counts: Counts, room: Room, max_gpus: GpuLimits = UNLIMITED) -> bool:
    """Whether all replicas find room, within limits."""
    groups: Counter[Option] = Counter()
    for structure, replicas in counts:
        for option in structure:
            groups[option] += replicas
    used: Counter[str] = Counter()
    for (gpu_type, tp), number in groups.items() if max_gpus else ():
        used[gpu_type] += tp * number
    return max_gpus.allows(used) and can_pack(groups, room)


def merged(rows: Iterable[tuple[Structure, int]]) -> Counts:
    """The one form of a set of templates: equal ones are one, without zeros, sorted."""
    counts: Counter[Structure] = Counter()
    for structure, replicas in rows:
        counts[structure] += replicas
    return tuple(sorted((s, n) for s, n in counts.items() if n > 0))


def counts_of(candidate: PlacedCandidate) -> Counts:
    """The templates of a placed candidate, whatever their fill."""
    return merged((one.structure, len(one.where)) for one in candidate)


def adjacent(
    counts: Counts,
    choices: Sequence[Option],
    pool: Sequence[Structure],
    deepest: int,
    room: Room,
    max_gpus: GpuLimits = UNLIMITED,
) -> Iterator[Counts]:
    """Every set of templates one step from another that packs, each once.

    A stage may have any of `choices`; templates of `pool` may take the room of others.
    """
    known = {counts}
    for step in (*_changes(counts, choices, deepest), *_exchanges(counts, pool, room, max_gpus)):
        found = merged(step)
        if found and found not in known:
            known.add(found)
            if packs(found, room, max_gpus):
                yield found


def _changes(
    counts: Counts, choices: Sequence[Option], deepest: int
) -> Iterator[list[tuple[Structure, int]]]:
    """More or fewer replicas of a template, and changed stages of all of them or of one."""
    for index, (structure, replicas) in enumerate(counts):
        rest = [*counts[:index], *counts[index + 1 :]]
        yield [*rest, (structure, replicas + 1)]
        yield [*rest, (structure, replicas - 1)]
        for other in every_change(structure, choices, deepest):
            yield [*rest, (other, replicas)]
            if replicas > 1:
                yield [*rest, (structure, replicas - 1), (other, 1)]


def _exchanges(
    counts: Counts, pool: Sequence[Structure], room: Room, max_gpus: GpuLimits
) -> Iterator[list[tuple[Structure, int]]]:
    """Other templates in idle GPUs, or in the room of some replicas."""
    bases = [list(counts)]
    for index, (structure, replicas) in enumerate(counts):
        rest = [*counts[:index], *counts[index + 1 :]]
        bases += [[*rest, (structure, kept)] for kept in range(replicas)]
    for base in bases:
        for other in pool:
            more = 1
            while packs(merged([*base, (other, more)]), room, max_gpus):
                yield [*base, (other, more)]
                more += 1


def every_change(
    structure: Structure, choices: Sequence[Option], deepest: int
) -> Iterator[Structure]:
    """The template with one stage replaced, removed or added, or with two swapped."""
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
