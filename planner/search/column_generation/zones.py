"""Where types with slow NICs stand in a plan, and how long its gradients are summed.

A layer's gradients are summed at the rate of the slowest NIC that holds it in any template.  So
either every block may meet the slowest NIC, or the types that have it keep to the first and the
last blocks in all templates.
Source: Heddle, section 5.2 (gradient synchronisation).   Legend: O options.
"""

from __future__ import annotations

import numpy as np

from planner.estimator.elites import Elites
from planner.estimator.fill.zone_limits import Zones, zone_seconds
from planner.estimator.tables import Tables
from planner.search.column_generation.mixtures import speeds_of

SYNC_SHARES = (0.02, 0.04, 0.08, 0.14, 0.22, 0.35)  # of an iteration that gradients may take
ZONE_SYNC_SHARES = (0.03, 0.07, 0.15)  # where slow NICs keep to zones
ZONES = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0)  # share of blocks of slow NICs, over that of their speed
MINORITY = 0.45  # of the speed; slow NICs that have more of it would stand idle in zones


def zones_of(t: Tables, front: int, back: int, slowest: float, fast: float, most_s: float) -> Zones:
    """Zones where a byte takes `slowest` seconds, with `fast` elsewhere; see `Zones`."""
    tp = t.option_tp
    block = 2 * (t.whole_bytes[t.layers] + t.sharded_bytes[t.layers] / tp)
    experts = (
        2
        * t.state_bytes[1]
        * np.array([row[:n].min() for row, n in zip(t.expert_numel, t.variants, strict=True)])
    )
    ends = [2 * (t.whole_bytes[i] + t.sharded_bytes[i] / tp) for i in (0, t.layers + 1)]
    rates = [slowest if blocks else fast for blocks in (front, back or front == t.layers)]
    return Zones(
        front,
        back,
        (t.nic[t.option_type, 1] > fast).astype(np.int64),
        (block + experts) * slowest,
        (block + experts) * fast,
        np.stack([end * rate for end, rate in zip(ends, rates, strict=True)], axis=1),
        most_s,
    )


def model_seconds(t: Tables, slowest: float) -> float:
    """To sum the gradients of the whole model on one GPU."""
    experts = t.layers * t.expert_numel[:, 0].max() * t.state_bytes[1]
    return float(2 * slowest * (t.whole_bytes.sum() + t.sharded_bytes.sum() + experts))


def whole_zones(t: Tables, slowest: float, seconds: float) -> list[Zones]:
    """The slowest NIC everywhere, with several times to sum."""
    model_s = model_seconds(t, slowest)
    found = [
        zones_of(t, t.layers, 0, slowest, slowest, share * seconds)
        for share in SYNC_SHARES
        if share * seconds < model_s / 2
    ]
    if model_s < 2 * SYNC_SHARES[-1] * seconds:  # or whatever it takes
        found.append(zones_of(t, t.layers, 0, slowest, slowest, model_s / 2))
    return found


def end_zones(t: Tables, slowest: float, fast: float, seconds: float) -> list[Zones]:
    """The slowest NIC at the front, the back or both, with several times to sum.

    Types with slow NICs find work for their share of the speed, so that zones are about as large.
    """
    model_s = model_seconds(t, slowest)
    speeds = speeds_of(t)[1] * (t.nic[:, 1] <= slowest)
    share = speeds[t.nic[:, 1] > fast].sum() / speeds.sum()
    if not 0 < share <= MINORITY:
        return []
    found = []
    for blocks in sorted({max(1, round(zone * share * t.layers)) for zone in ZONES}):
        if blocks > t.layers // 2:
            break
        for front in sorted({0, blocks // 2, blocks}):
            for sync_share in ZONE_SYNC_SHARES:
                if sync_share * seconds < model_s / 2:
                    most_s = sync_share * seconds
                    found.append(zones_of(t, front, blocks - front, slowest, fast, most_s))
    return found


def slow_ends(t: Tables, elites: Elites, row: int, fast: float) -> tuple[int, int]:
    """Blocks from the first on, and up to the last, that slow NICs hold in one of the elites."""
    front = back = 0
    for k in range(elites.templates[row]):
        start = 0
        for option, blocks in zip(elites.options[row, k], elites.blocks[row, k], strict=True):
            if blocks and t.nic[t.option_type[option], 1] > fast:
                if start < t.layers - start - blocks:
                    front = max(front, start + int(blocks))
                else:
                    back = max(back, t.layers - start)
            start += int(blocks)
    return (t.layers, 0) if front + back >= t.layers / 2 else (front, back)


def plan_zone_seconds(t: Tables, elites: Elites, row: int, zones: Zones) -> float:
    """The longest gradient sum of one of the elites, as `Zones` counts it."""
    longest_s = 0.0
    for k in range(elites.templates[row]):
        start = 0
        for option, blocks in zip(elites.options[row, k], elites.blocks[row, k], strict=True):
            if blocks:
                stop = start + int(blocks)
                seconds = zone_seconds(zones, int(option), start, stop, t.layers)
                longest_s = max(longest_s, seconds)
                start = stop
    return longest_s
