"""Metis' device groups: how many GPUs each stage has, in every order that is not pruned.

Source: Um et al., Metis, USENIX ATC 2024 (pruning by group variance and by permutation length).
"""

from __future__ import annotations

from collections.abc import Iterator

Groups = tuple[int, ...]  # GPUs of each stage


def multisets(gpus: int, stages: int, variance: float) -> Iterator[Groups]:
    """Powers of two that never fall, of that sum, none below its share times the variance."""
    least = variance * max(gpus // stages, stages // gpus)
    powers = [1 << k for k in range(gpus.bit_length()) if least <= 1 << k <= gpus]

    def grow(left: int, number: int, first: int) -> Iterator[Groups]:
        if number == 0:
            if left == 0:
                yield ()
            return
        for index in range(first, len(powers)):
            if powers[index] * number > left:
                return
            for rest in grow(left - powers[index], number - 1, index):
                yield (powers[index], *rest)

    yield from grow(gpus, stages, 0)


def orders(groups: Groups, most_length: int) -> Iterator[Groups]:
    """Every order of the groups; where there are too many, equal smallest ones stay in pairs."""
    units = [(group,) for group in groups]
    while len(units) > most_length:
        units.sort(key=lambda unit: (sum(unit), unit))
        pair = next((i for i, one in enumerate(units[:-1]) if one == units[i + 1]), None)
        if pair is None:
            break
        units[pair : pair + 2] = [units[pair] + units[pair + 1]]
    for order in _permutations(sorted(units)):
        yield tuple(group for unit in order for group in unit)


def _permutations(units: list[Groups]) -> Iterator[list[Groups]]:
    """All different orders of sorted units, in lexicographic order."""
    now = list(units)
    while True:
        yield now
        first = len(now) - 2
        while first >= 0 and now[first] >= now[first + 1]:
            first -= 1
        if first < 0:
            return
        last = len(now) - 1
        while now[last] <= now[first]:
            last -= 1
        now = list(now)
        now[first], now[last] = now[last], now[first]
        now[first + 1 :] = reversed(now[first + 1 :])
