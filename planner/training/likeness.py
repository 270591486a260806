"""How unlike two compositions are, to know how new a composition is to a policy.

Invariant: the distance is symmetric, and 0 if both have as many nodes of each type and size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from planner.cluster.composition import Composition


def node_counts(composition: Composition) -> Counter[tuple[str, int]]:
    """{(GPU type, GPUs of a node): nodes}; what a composition is, whatever its nodes are called."""
    return Counter((node.gpu_type, node.gpus) for node in composition.nodes)


def node_text(counts: Mapping[tuple[str, int], int]) -> str:
    """So many nodes as `heddle plan --composition` takes them."""
    parts: dict[str, list[str]] = {}
    for (name, size), count in sorted(counts.items(), key=lambda row: (row[0][0], -row[0][1])):
        parts.setdefault(name, []).append(f"{count}x{size}")
    return ",".join(f"{name}={'+'.join(sizes)}" for name, sizes in parts.items())


class Mix(NamedTuple):
    """Make-up of a composition, as far as likeness goes."""

    shares: dict[tuple[str, int], float]  # {(GPU type, GPUs of a node): share of all GPUs}
    gpus: int  # their number

    @staticmethod
    def of(composition: Composition) -> Mix:
        """Of at least one node."""
        gpus = composition.gpus
        counts = node_counts(composition)
        return Mix({key: nodes * key[1] / gpus for key, nodes in counts.items()}, gpus)

    def distance(self, other: Mix) -> float:
        """The share of GPUs that would have to change, plus the doublings of their number.

        The first part (0 to 1) counts GPUs of another type or on nodes of another size, the second
        is |log2| of the ratio of the numbers of GPUs.  Names, speeds, prices and links of nodes do
        not count.
        """
        keys = sorted(self.shares.keys() | other.shares.keys())
        moved = sum(abs(self.shares.get(k, 0.0) - other.shares.get(k, 0.0)) for k in keys)
        return moved / 2 + abs(math.log2(self.gpus / other.gpus))


def nearest(composition: Composition, among: Iterable[Composition]) -> tuple[Composition, float]:
    """The one of at least one that is least unlike, and its `Mix.distance`; of equals the first."""
    own = Mix.of(composition)
    return min(((one, own.distance(Mix.of(one))) for one in among), key=lambda pair: pair[1])
