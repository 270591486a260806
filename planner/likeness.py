"""How unlike two compositions are, to know how new a composition is to a policy.

Invariant: the distance is symmetric, and 0 if both have as many nodes of each type and size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from planner.composition import Composition


def node_counts(composition: Composition) -> Counter[tuple[str, int]]:
    """{(GPU type, GPUs of a node): nodes}; what a composition is, whatever its nodes are called."""
    return Counter((node.gpu_type, node.gpus) for node in composition.nodes)


def distance(one: Composition, other: Composition) -> float:
    """The share of GPUs that would have to change, plus the doublings of their number.

    The first part (0 to 1) counts GPUs of another type or on nodes of another size, the second is
    |log2| of the ratio of the numbers of GPUs.  Names, speeds, prices and links do not count.
    """
    return _between(_shares(one), _shares(other))


def nearest(composition: Composition, among: Iterable[Composition]) -> tuple[Composition, float]:
    """The one that is least unlike, and its `distance`; of equals the first.

    Raises:
        ValueError: there is none.
    """
    own = _shares(composition)
    return min(((one, _between(own, _shares(one))) for one in among), key=lambda pair: pair[1])


_Shares = tuple[dict[tuple[str, int], float], int]


def _shares(composition: Composition) -> _Shares:
    """{(type, GPUs of a node): share of the GPUs}, and the number of GPUs."""
    counts, gpus = node_counts(composition), composition.gpus
    return {key: nodes * key[1] / gpus for key, nodes in counts.items()}, gpus


def _between(one: _Shares, other: _Shares) -> float:
    (a, many), (b, few) = one, other
    moved = sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in sorted(a.keys() | b.keys()))
    return moved / 2 + abs(math.log2(many / few))
