"""Metis' one-shot layer split: layers by the speed of the stages, scaled where memory is short.

Layers are cut into sub-layers, which fill the stages from the front up to their shares and the last
stage from the back; what is left over goes to the neighbour with the most spare share.  A majority
of its sub-layers decides where a layer goes, and at most four layers then move over a cut.
Source: Um et al., Metis, USENIX ATC 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

SUBLAYERS = 7  # of a layer
MOVES = 4  # of a layer over a cut, after the vote
ATTEMPTS = 3  # to scale shares to the memory
SCALED = 0.9  # of a share that exactly fits


def split(weights: Sequence[float], shares: Sequence[float]) -> tuple[int, ...]:
    """Cuts of layers of these weights into stages of these shares; both sum to 1."""
    parts = [weight / SUBLAYERS for weight in weights for _ in range(SUBLAYERS)]
    count, stages = len(parts), len(shares)
    ends, filled, first = [], [], 0
    for share in shares[:-1]:
        total = 0.0
        while first < count and total + parts[first] <= share * (1 + 1e-9):
            total += parts[first]
            first += 1
        ends.append(first)
        filled.append(total)
    last, total = count, 0.0
    while last > first and total + parts[last - 1] <= shares[-1] * (1 + 1e-9):
        last -= 1
        total += parts[last]
    filled.append(total)
    while stages > 1 and first < last:  # left over between the last two stages
        spare = [share - have for share, have in zip(shares[-2:], filled[-2:], strict=True)]
        if spare[0] >= spare[1]:
            filled[-2] += parts[first]
            first += 1
        else:
            last -= 1
            filled[-1] += parts[last]
    if stages > 1:
        ends[-1] = first
    return _majority(ends, len(weights))


def _majority(ends: Sequence[int], layers: int) -> tuple[int, ...]:
    """Cuts at whole layers: each goes where most of its sub-layers are."""
    cuts = [0]
    for end in ends:
        whole, rest = divmod(end, SUBLAYERS)
        cuts.append(whole + (2 * rest > SUBLAYERS))
    return (*cuts, layers)


def moved(cuts: Sequence[int], seconds: Callable[[int, int, int], float]) -> tuple[int, ...]:
    """The cuts after at most `MOVES` moves of a layer, each to shorten the slowest stage.

    `seconds(stage, start, stop)` is what a stage takes for layers [start, stop).
    """
    now = list(cuts)
    for _ in range(MOVES):
        times = [seconds(s, now[s], now[s + 1]) for s in range(len(now) - 1)]
        slowest = max(times)
        worst = times.index(slowest)
        best: tuple[float, int, int] | None = None
        for cut, step in ((worst, 1), (worst + 1, -1)):
            if 0 < cut < len(now) - 1 and now[worst + 1] - now[worst] > 1:
                trial = list(now)
                trial[cut] += step
                other = worst - 1 if step == 1 else worst + 1
                pair = max(seconds(s, trial[s], trial[s + 1]) for s in (worst, other))
                if pair < slowest and (best is None or pair < best[0]):
                    best = (pair, cut, step)
        if best is None:
            break
        now[best[1]] += best[2]
    return tuple(now)


def rescaled(
    shares: Sequence[float], demands: Sequence[float], capacities: Sequence[float]
) -> tuple[float, ...]:
    """Shares after those of stages over their memory were cut, the surplus with the others."""
    now = list(shares)
    surplus = 0.0
    room = [max(0.0, have - want) for want, have in zip(demands, capacities, strict=True)]
    for stage, (want, have) in enumerate(zip(demands, capacities, strict=True)):
        if want > have:
            cut = now[stage] * have / want * SCALED
            surplus += now[stage] - cut
            now[stage] = cut
    total = sum(room)
    if total:
        now = [share + surplus * free / total for share, free in zip(now, room, strict=True)]
    return tuple(now)
