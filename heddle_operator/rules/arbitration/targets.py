"""How many GPUs of which type each job is to be dealt, where types differ.

Jobs of higher priority come first; among equals the sum of their throughputs counts, each over
what the job would have with all these GPUs to itself.  GPUs go one run after the other to whom they
bring most for each GPU; then two jobs exchange GPUs, or one changes the type of its own, as long as
that brings more.  A few GPUs are divided exactly (`few_gpus`).
Invariant: nobody gets less than its floor, more than it may have, or what is not there.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping

from heddle_operator.rules.arbitration.claim import Claim
from heddle_operator.rules.arbitration.few_gpus import MOST, choices, divide_few

_LEAST_GAIN = 1e-6
_EQUAL = 0.01  # gains that part by less are equal
_ROUNDS = 30
_FEW = 8  # twice as many are tried one by one
_TRADERS = 12  # with more jobs none trades with another, and only runs that double are tried


def divide(claims: Iterable[Claim], supply: Mapping[str, int]) -> None:
    """Deal the supply to the claims, which have their floors already.

    Args:
        claims: in the order in which jobs come among equals.
        supply: free GPUs by type beside what the claims have been dealt.
    """
    rows, left = list(claims), dict(supply)
    free = Counter(supply)
    for claim in rows:
        free.update(claim.dealt)
    if choices(len(rows), free) <= MOST:
        rows.sort(key=lambda claim: claim.rank)
        divide_few(rows, free)
        return
    for rank in sorted({claim.rank for claim in rows}):
        equals = [claim for claim in rows if claim.rank == rank]
        _grow(equals, left)
        _improve(equals, left)
    if _deal_rest(rows, left):  # so that it can be paid with
        for rank in sorted({claim.rank for claim in rows}):
            _improve([claim for claim in rows if claim.rank == rank], left)
    if len(rows) <= _TRADERS:
        for one, other in itertools.permutations(rows, 2):
            if one.rank < other.rank:  # who comes later has a better type only if it must
                _trade(one, other, by_rank=True)


def _grow(equals: list[Claim], left: dict[str, int]) -> None:
    """Runs of free GPUs go where they bring most for each GPU; among near equals to the poorest."""
    offers = {id(claim): _best_run(claim, left) for claim in equals}
    while True:
        live = [(claim, offers[id(claim)]) for claim in equals if offers[id(claim)] is not None]
        if not live:
            return
        top = max(offer[0] for _, offer in live if offer is not None)
        near = [c for c, offer in live if offer is not None and offer[0] >= top * (1 - _EQUAL)]
        winner = min(near, key=lambda claim: claim.value())
        offer = offers[id(winner)]
        assert offer is not None
        _, gpu_type, gpus = offer
        winner.apply({gpu_type: gpus})
        left[gpu_type] -= gpus
        for claim in equals:
            mine = offers[id(claim)]
            if claim is winner or (mine is not None and mine[2] > left[mine[1]]):
                offers[id(claim)] = _best_run(claim, left)


def _deal_rest(rows: list[Claim], left: dict[str, int]) -> bool:
    """Deal GPUs that alone bring nobody anything to those who have fewest; whether there are any.

    A plan may mix them with others.
    """
    found = False
    for gpu_type in sorted(left):
        while left[gpu_type] > 0:
            able = [claim for claim in rows if claim.room(gpu_type)]
            if not able:
                break
            poorest = min(able, key=lambda claim: sum(claim.dealt.values()))
            gpus = min(poorest.room(gpu_type), -(-left[gpu_type] // len(able)))
            poorest.apply({gpu_type: gpus})
            left[gpu_type] -= gpus
            found = True
    return found


def _best_run(claim: Claim, left: Mapping[str, int]) -> tuple[float, str, int] | None:
    """(gain a GPU, type, GPUs) of the free GPUs that bring it most for each; the longest run."""
    before = claim.value()
    found: list[tuple[float, str, int]] = []
    for gpu_type in sorted(claim.rooms):
        for gpus in _runs(left.get(gpu_type, 0)):
            gain = claim.value({gpu_type: gpus}) - before
            if gain > _LEAST_GAIN:
                found.append((gain / gpus, gpu_type, gpus))
            elif gain == -math.inf:
                break
    top = max((gain for gain, _, _ in found), default=0.0)
    near = [row for row in found if row[0] >= top * (1 - _EQUAL)]
    return max(near, key=lambda row: (row[2], row[0], row[1]), default=None)


def _runs(most: int) -> tuple[int, ...]:
    """Sizes of runs that are tried: each one where there are few GPUs, else those that double."""
    if most <= 2 * _FEW:
        return tuple(range(1, most + 1))
    return (*(2**i for i in range(most.bit_length())), most)


def _improve(equals: list[Claim], left: dict[str, int]) -> None:
    """Change types and trade among equals as long as it brings more."""
    for _ in range(_ROUNDS):
        changed = [_retype(claim, left) for claim in equals]
        if len(equals) <= _TRADERS:
            pairs = itertools.permutations(equals, 2)
            changed += [_trade(one, other) for one, other in pairs]
        if not any(changed):
            return


def _retype(claim: Claim, left: dict[str, int]) -> bool:
    """Give GPUs of one type back for free ones of another, if that brings more."""
    before, best = claim.value() + _LEAST_GAIN, None
    for old, new in itertools.permutations(sorted(claim.rooms), 2):
        if not left.get(new):
            continue
        for back in _runs(claim.dealt.get(old, 0)):
            for gpus in _runs(left.get(new, 0)):
                value = claim.value({old: -back, new: gpus})
                if value > before:
                    before, best = value, (old, back, new, gpus)
    if best is None:
        return False
    old, back, new, gpus = best
    claim.apply({old: -back, new: gpus})
    left[old] = left.get(old, 0) + back
    left[new] -= gpus
    return True


def _trade(one: Claim, other: Claim, by_rank: bool = False) -> bool:
    """`one` gets GPUs of another's, for some of its own or for none, if both together gain.

    With `by_rank` only the gain of the first counts; the other keeps its floor and a plan.
    """
    best = _LEAST_GAIN
    found: tuple[dict[str, int], dict[str, int]] | None = None
    mine, theirs = one.value(), other.value()
    for wanted in sorted(one.rooms):
        for gpus in _runs(other.dealt.get(wanted, 0)):
            for paid, back in _payments(one, wanted):
                gets, gives = {wanted: gpus}, {wanted: -gpus}
                if back:
                    gets[paid], gives[paid] = -back, back
                gain = one.value(gets) - mine
                loss = theirs - other.value(gives)
                if math.isinf(loss) or (by_rank and (not back or loss >= theirs > 0)):
                    continue
                if (gain if by_rank else gain - loss) > best:
                    best, found = gain if by_rank else gain - loss, (gets, gives)
    if found is None:
        return False
    one.apply(found[0])
    other.apply(found[1])
    return True


def _payments(claim: Claim, wanted: str) -> Iterable[tuple[str, int]]:
    yield "", 0
    for gpu_type in sorted(claim.rooms):
        if gpu_type != wanted:
            for gpus in _runs(claim.dealt.get(gpu_type, 0)):
                yield gpu_type, gpus
