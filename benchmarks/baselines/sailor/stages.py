"""Sailor's dynamic programme: how many replicas of each stage run on each GPU type.

From the first stage on every split of the replicas over the types is tried; one whose stage takes
as long as the split before it is skipped.  The rest is the best of what the GPUs left can do,
looked up by (stage, GPUs left).  Of two ways the one whose own stages alone would make the shorter
iteration is taken, so that the plan of the whole need not be the best of all splits.
Legend: S stages, T types, R replicas.  A mask has a bit for each type that a stage uses.
Source: Strati et al., Sailor, SOSP 2025.
"""

from __future__ import annotations

import numba
import numpy as np

SLOTS = 1 << 20  # of the table of what is known already
MOST, SUM, P2P, RING, FIRST = range(5)  # columns of what is known: seconds, and the first mask


def new_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An empty table: keys, what is known, and the split chosen for each."""
    return np.full(SLOTS, -1, np.int64), np.zeros((SLOTS, 5)), np.zeros((SLOTS, 8), np.int64)


@numba.njit(cache=True)
def _slot(keys, key):
    """The place of a key: its own, or the free one that it would take."""
    slot = (key * 1_000_003) % len(keys)
    while keys[slot] != -1 and keys[slot] != key:
        slot = (slot + 1) % len(keys)
    return slot


@numba.njit(cache=True)
def _key(stage, left, radix):
    key = np.int64(stage)
    for t in range(len(left)):
        key = key * radix + left[t]
    return key


@numba.njit(cache=True)
def _iteration(known, micro_batches):
    return (micro_batches - 1) * known[MOST] + known[SUM] + known[P2P] + known[RING]


@numba.njit(cache=True)
def solve(  # noqa: C901  (one scalar loop: a call that passes the tables costs more)
    stage, left, tp, seconds, rings, p2p, replicas, micro_batches, table, counters
):
    """Fill the table for a stage and the GPUs left; the place of its entry, -1 if nothing fits.

    Args:
        stage: from 0 to S - 1.
        left: [T] GPUs of each type.
        tp: [S, T] TP degrees; 0: the type is out.
        seconds: [S, T] of a stage for one micro-batch.
        rings: [S, masks] gradient sum of a stage by the types that it uses.
        p2p: [masks] one message to a neighbour, by the types of both.
        replicas: R.
        micro_batches: M.
        table: keys, what is known, splits.
        counters: [4] splits priced, most of them, entries of the table, GPUs of a type + 1.
    """
    keys, known, splits = table
    types = len(left)
    slot = _slot(keys, _key(stage, left, counters[3]))
    if keys[slot] != -1:
        return slot if known[slot, SUM] < np.inf else -1
    best = np.full(5, np.inf)
    split, chosen = np.zeros(8, np.int64), np.zeros(8, np.int64)
    caps = np.zeros(types, np.int64)
    for t in range(types):
        caps[t] = min(replicas, left[t] // tp[stage, t]) if tp[stage, t] else 0
    previous, value = -1.0, np.inf
    # every split, the last type takes what the others leave
    while True:
        rest = replicas
        for t in range(types - 1):
            rest -= split[t]
        if 0 <= rest <= caps[types - 1]:
            split[types - 1] = rest
            slowest, mask = 0.0, 0
            for t in range(types):
                if split[t]:
                    slowest = max(slowest, seconds[stage, t])
                    mask |= 1 << t
            if slowest != previous:
                previous = slowest
                counters[0] += 1
                if counters[0] > counters[1] or counters[2] > len(keys) // 2:
                    break
                here = np.zeros(5)
                here[MOST] = here[SUM] = slowest
                here[RING] = rings[stage, mask]
                here[FIRST] = mask
                is_whole = True
                if stage + 1 < len(tp):
                    after = left.copy()
                    for t in range(types):
                        after[t] -= split[t] * tp[stage, t]
                    follow = solve(
                        stage + 1,
                        after,
                        tp,
                        seconds,
                        rings,
                        p2p,
                        replicas,
                        micro_batches,
                        table,
                        counters,
                    )
                    is_whole = follow >= 0
                    if is_whole:
                        message = p2p[mask | np.int64(known[follow, FIRST])]
                        here[MOST] = max(slowest + message, known[follow, MOST])
                        here[SUM] += known[follow, SUM]
                        here[P2P] = 2 * message + known[follow, P2P]
                        here[RING] = max(here[RING], known[follow, RING])
                if is_whole and _iteration(here, micro_batches) < value:
                    value = _iteration(here, micro_batches)
                    best[:] = here
                    chosen[:] = split
        t = types - 2
        while t >= 0:
            split[t] += 1
            taken = 0
            for other in range(t + 1):
                taken += split[other]
            if split[t] <= caps[t] and taken <= replicas:
                break
            split[t] = 0
            t -= 1
        if t < 0:
            break
    slot = _slot(keys, _key(stage, left, counters[3]))
    counters[2] += 1
    keys[slot] = _key(stage, left, counters[3])
    known[slot] = best
    splits[slot] = chosen
    return slot if value < np.inf else -1
