"""The generated compositions that a policy is trained on, and how far a composition is from them.

They vary in which type holds the most GPUs, how many types there are, how many GPUs, and the nodes'
sizes: the same for all, one for each type, or mixed within a type.
Invariants: the same types, seed and range give the same compositions; all are different, and none
is near a composition that policies are evaluated on (`planner.training.composition_sets`).
Source: Heddle, section 6 ("Configurations and training"): 94 for the simulation, 32 for hardware.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random

from planner.cluster.composition import Composition
from planner.cluster.gpu_types import HARDWARE as HARDWARE_OF
from planner.errors import InvalidComposition
from planner.model.workload import DEMO_MODELS
from planner.training.composition_sets import committed_sets
from planner.training.likeness import Mix, node_counts, node_text

LEAST_DISTANCE = 0.05  # of every training composition from every one of the evaluation
MOST_TRIES = 500  # for one composition; a range that runs dry is refused
DOMINANT = (0.35, 0.75)  # share of the GPUs that the dominant type holds
MIXES = ("one size", "a size for each type", "mixed")


@dataclass(frozen=True, slots=True)
class TrainingRange:
    """Ranges of generated compositions."""

    num: int  # how many there are
    kinds: tuple[int, int]  # least and most types of one
    gpus: tuple[int, int]  # least and most GPUs of one; sizes are spread evenly on a log scale
    node_gpus: tuple[int, ...]  # sizes of nodes, in GPUs


SIMULATION = TrainingRange(94, (2, 4), (32, 512), (1, 2, 4, 8))
HARDWARE = TrainingRange(32, (1, 4), (3, 32), (1, 2, 3, 4))
LARGE = TrainingRange(94, (1, 2), (224, 512), (4, 8))  # of a model that fewer GPUs do not hold
WIDE = TrainingRange(94, (1, 4), (8, 512), (1, 2, 4, 8))  # of any types, in any mix
DEMO = TrainingRange(32, (1, 2), (1, 12), (1, 2, 3, 4))
SIMULATION_TYPES = ("a100-40", "a100-80", "h100", "a6000")
TESTBED_TYPES = ("a5000", "rtx-pro-6000")  # of the paper's cluster, which is small
HARDWARE_TYPES = (*SIMULATION_TYPES, *TESTBED_TYPES)
LARGE_MODEL, LARGE_TYPES = "deepseek-v3-like", ("a100-80", "h100")
DEMO_TYPES = ("demo-fast", "demo-slow")


def usual_types(model: str) -> tuple[str, ...]:
    """The GPU types of the paper that the model of that name is planned for.

    Four in its simulations, six in its hardware study; the demo has its own, and a model of 671
    billion parameters the two with the most memory.
    """
    if model in DEMO_MODELS:
        return DEMO_TYPES
    if model == LARGE_MODEL:
        return LARGE_TYPES
    return HARDWARE_TYPES if model == "gpt-neo-2.7b" else SIMULATION_TYPES


def all_types(model: str) -> tuple[str, ...]:
    """The GPU types that the model has a policy for, unless somebody says otherwise.

    All that have a profile, the usual ones first; the demo has its own.
    """
    usual = usual_types(model)
    return usual if model in DEMO_MODELS else (*usual, *sorted(HARDWARE_OF.keys() - set(usual)))


def types_named(model: str, named: str) -> tuple[str, ...]:
    """The types of a text with commas, those that are usual in their usual order.

    So naming all of them trains on the same compositions as naming none.
    """
    usual, given = usual_types(model), set(named.split(","))
    return (*(name for name in usual if name in given), *sorted(given.difference(usual)))


def training_sets(
    model: str, types: tuple[str, ...]
) -> tuple[tuple[tuple[str, ...], TrainingRange], ...]:
    """(types, range) of the sets that a policy for these types is trained on, in equal shares.

    Types that are usual for the model have a set of their own; others join them in any mix.
    """
    usual = usual_types(model)
    if set(types) <= set(usual) or model in DEMO_MODELS:
        return ((types, range_for(types, model)),)
    known = tuple(name for name in types if name in usual)
    own = ((known, range_for(known, model)),) if known else ()
    wide = replace(WIDE, gpus=LARGE.gpus, node_gpus=LARGE.node_gpus)
    return (*own, (types, wide if model == LARGE_MODEL else WIDE))


def range_for(types: Sequence[str], model: str = "") -> TrainingRange:
    """Small compositions for the demo's types and those of the paper's testbed, else large ones.

    Those of the largest model have at least one and a half times the memory that its state takes.
    """
    if model == LARGE_MODEL:
        return LARGE
    if set(types) <= set(DEMO_TYPES):
        return DEMO
    return HARDWARE if set(types) & set(TESTBED_TYPES) else SIMULATION


def training_compositions(
    types: tuple[str, ...], seed: int, within: TrainingRange | None = None
) -> tuple[Composition, ...]:
    """The compositions that a policy is trained on; each type dominates as often as the others.

    They vary over `range_for(types)`, unless another range is given.

    Raises:
        InvalidComposition: the range holds too few different compositions.
    """
    asked = range_for(types) if within is None else within
    random = Random(f"{seed} {' '.join(types)} {asked}")
    ranks = list(range(asked.num))
    random.shuffle(ranks)
    held_out = [Mix.of(one.composition) for rows in committed_sets().values() for one in rows]
    found: dict[tuple[tuple[tuple[str, int], int], ...], Composition] = {}
    for rank, (kinds, dominant) in zip(ranks, _wishes(types, asked, random), strict=False):
        for attempt in range(MOST_TRIES):
            # where all compositions of that size are taken, any other size will do
            size = rank if 2 * attempt < MOST_TRIES else random.randrange(asked.num)
            total = _gpus(asked, size, random)
            others = [name for name in types if name != dominant]
            others = random.sample(others, min(kinds, total) - 1)
            one = _drawn((dominant, *others), total, asked.node_gpus, random)
            name = tuple(sorted(node_counts(one).items()))
            is_within = asked.gpus[0] <= one.gpus <= asked.gpus[1]
            if is_within and name not in found and not _is_near(one, held_out):
                found[name] = one
                break
        else:
            raise InvalidComposition(
                f"there are no {asked.num} different training compositions of {asked.gpus[0]} to "
                f"{asked.gpus[1]} GPUs of {', '.join(types)}, but {len(found)} at least; ask for "
                f"fewer, or for a wider range",
                code="OutOfRange",
            )
    return tuple(found.values())


def _is_near(one: Composition, held_out: Sequence[Mix]) -> bool:
    own = Mix.of(one)
    return any(
        abs(math.log2(own.gpus / other.gpus)) < LEAST_DISTANCE
        and own.distance(other) < LEAST_DISTANCE
        for other in held_out
    )


def _wishes(
    types: tuple[str, ...], asked: TrainingRange, random: Random
) -> Iterator[tuple[int, str]]:
    """(number of types, the dominant one) for ever, each pair as often as any other."""
    fewest, most = (min(kinds, len(types)) for kinds in asked.kinds)
    pairs = list(product(range(fewest, most + 1), types))
    while True:
        random.shuffle(pairs)
        yield from pairs


def _gpus(asked: TrainingRange, rank: int, random: Random) -> int:
    """GPUs of the `rank`-th smallest of all compositions."""
    least, most = asked.gpus
    doublings = math.log2(most / least) * (rank + random.random()) / asked.num
    return round(least * math.pow(2, doublings))


def _drawn(
    types: tuple[str, ...], total: int, node_gpus: tuple[int, ...], random: Random
) -> Composition:
    """About so many GPUs of these types, the first of which dominates."""
    mix, same = random.choice(MIXES), random.choice(node_gpus)
    nodes: Counter[tuple[str, int]] = Counter()
    for name, gpus in zip(types, _split(total, len(types), random), strict=True):
        sizes = [same]
        if mix == "a size for each type":
            sizes = [random.choice(node_gpus)]
        elif mix == "mixed":
            sizes = random.sample(node_gpus, min(2, len(node_gpus)))
        nodes.update({(name, size): n for size, n in _nodes(gpus, sizes, random).items()})
    return Composition.from_text(node_text(nodes))


def _split(total: int, kinds: int, random: Random) -> list[int]:
    """GPUs of each type, at least one, the first type with the most."""
    if kinds == 1:
        return [total]
    share = random.uniform(max(DOMINANT[0], 1 / kinds), DOMINANT[1])
    weights = [random.uniform(0.5, 1.0) for _ in range(kinds - 1)]
    rest = [(1 - share) * weight / sum(weights) for weight in weights]
    others = [max(1, round(total * min(share, part))) for part in rest]
    return [max(1, total - sum(others)), *others]


def _nodes(gpus: int, sizes: list[int], random: Random) -> Counter[int]:
    """{GPUs of a node: nodes} that hold about so many GPUs, of all these sizes if they can."""
    found: Counter[int] = Counter()
    left = gpus
    for size in sorted(sizes, reverse=True)[:-1]:
        found[size] = max(1, round(random.uniform(0.25, 0.75) * gpus / size))
        left -= size * found[size]
    smallest = min(sizes)
    found[smallest] += max(1, round(left / smallest)) if left > 0 or not +found else 0
    return +found
