"""Which blocks a stage may hold, so that gradients are summed in time.

Invariant: the more blocks, the longer the sum.
Source: Heddle, section 5.2 (gradient synchronisation).   Legend: O options, L blocks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from planner.estimator.by_reference import by_reference
from planner.estimator.jit import jit
from planner.estimator.tables import Floats, Ints, Tables


@by_reference
class Zones(NamedTuple):
    """Where types with slow NICs may stand, and how long a GPU may sum gradients.

    A layer is summed at the rate of the slowest NIC that holds it in any template, so slow types
    are kept to the same blocks in all: the first `front` and the last `back`.

    Attributes:
        front: blocks from the first on.
        back: blocks up to the last.
        only_there: [O] 1: the option holds no other blocks.
        slow_s: [O] to sum a block of these on one GPU.
        fast_s: [O] to sum any other block.
        ends_s: [O, 2] to sum embedding and head.
        most_s: of one GPU.
    """

    front: int
    back: int
    only_there: Ints
    slow_s: Floats
    fast_s: Floats
    ends_s: Floats
    most_s: float


@jit
def zone_seconds(zones: Zones, option: int, start: int, stop: int, layers: int) -> float:
    """Gradient sum of a stage with those blocks; infinite if it may not hold them, or too long."""
    slow = max(0, min(stop, zones.front) - start)
    slow += max(0, stop - max(start, layers - zones.back, zones.front))
    if zones.only_there[option] and slow < stop - start:
        return math.inf
    seconds = slow * zones.slow_s[option] + (stop - start - slow) * zones.fast_s[option]
    if start == 0:
        seconds += zones.ends_s[option, 0]
    if stop == layers:
        seconds += zones.ends_s[option, 1]
    return seconds if seconds <= zones.most_s else math.inf


@jit
def blocks_in_zones(t: Tables, zones: Zones, out: Ints) -> None:
    """The most blocks of a stage in front of so many blocks: [O, L + 1]."""
    for option in range(len(t.option_tp)):
        for covered in range(t.layers + 1):
            left = t.layers - covered
            blocks = 0
            while blocks < left and (
                zone_seconds(zones, option, left - blocks - 1, left, t.layers) < math.inf
            ):
                blocks += 1
            out[option, covered] = blocks
