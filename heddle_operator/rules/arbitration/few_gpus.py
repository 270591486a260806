"""The best division of a few GPUs of several types, by comparing all of them.

Jobs come by priority, then by age.  Of two divisions the one is better where the first job has a
plan that has none in the other; where the same jobs have plans, the one with the larger sum of
throughputs at the highest priority, each over what the job would have alone.  A job that has no
plan gets its floor where that costs nobody anything, as its worth may be wrong.
Invariant: nobody gets more than it may have, or what is not there; less than its floor gets only
who has no plan then.
Source: dynamic programming over the jobs, with the free GPUs by type as its state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from heddle_operator.rules.arbitration.claim import Claim

MOST = 30_000  # choices that are compared; so many take a tenth of a second
_FAIR = 0.999  # power of a throughput: of equal sums the one with equal shares is larger
_Gpus = tuple[int, ...]  # by type
# Who has a plan; the sum of each priority; who has its floor.
_Score = tuple[tuple[bool, ...], tuple[float, ...], tuple[bool, ...]]


def choices(jobs: int, free: Mapping[str, int]) -> int:
    """How many choices `divide_few` compares."""
    pairs = math.prod((gpus + 1) * (gpus + 2) // 2 for gpus in free.values())
    return jobs * pairs


def divide_few(claims: Sequence[Claim], free: Mapping[str, int]) -> None:
    """Deal free GPUs by type to the claims, anew.

    Args:
        claims: in the order in which jobs come.
        free: with what the claims have been dealt.
    """
    types = sorted(free)
    ranks = sorted({claim.rank for claim in claims})

    @cache
    def best(index: int, left: _Gpus) -> tuple[_Score, tuple[_Gpus, ...]]:
        """Of the jobs from this one on."""
        if index == len(claims):
            return ((), tuple(0.0 for _ in ranks), ()), ()
        claim = claims[index]
        found: tuple[_Score, tuple[_Gpus, ...]] | None = None
        for choice in _choices(claim, types, left):
            value = claim.with_dealt(dict(zip(types, choice, strict=True)))
            rest = tuple(have - take for have, take in zip(left, choice, strict=True))
            (plans, sums, floors), others = best(index + 1, rest)
            own = value**_FAIR
            sums = tuple(
                total + own * (rank == claim.rank) for rank, total in zip(ranks, sums, strict=True)
            )
            score = ((value > 0, *plans), sums, (sum(choice) >= claim.least, *floors))
            if found is None or score > found[0]:
                found = score, (choice, *others)
        assert found is not None  # nothing is always a choice
        return found

    _, dealt = best(0, tuple(free[gpu_type] for gpu_type in types))
    for claim, choice in zip(claims, dealt, strict=True):
        claim.dealt = {t: gpus for t, gpus in zip(types, choice, strict=True) if gpus}


def _choices(claim: Claim, types: Sequence[str], left: _Gpus) -> Iterator[_Gpus]:
    """What the job may be dealt, fewest first in each type; nothing comes first."""
    yield tuple(0 for _ in types)
    rooms = (min(have, claim.rooms.get(t, 0)) for t, have in zip(types, left, strict=True))
    for choice in itertools.product(*(range(room + 1) for room in rooms)):
        if max(1, claim.least) <= sum(choice) <= claim.further:
            yield choice
