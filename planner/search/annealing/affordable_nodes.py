"""Sets of nodes that a limit on money can pay, and plans to start from on each set.

A search starts from plans that span all node classes or fill one; where both are too dear, only a
set of some nodes has a plan.
Invariant: the nodes of a set cost no more than the limit, and the same tables give the same sets.
Source: the knapsack problem by dominance; its greedy heuristic by worth for money.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.estimator.tables import Ints, Tables

MOST_SETS = 12  # of which plans are priced
KEPT = 64  # partial sets, each dearer and of more worth than the last


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes of each class that are paid together: one node, or all hosts of one."""

    price: list[float]  # [T] money per hour of one
    count: list[int]  # [T] of them
    gpus: list[int]  # [T] of one


def affordable_rooms(tables: Tables, most_price: float) -> Iterator[Ints]:
    """`room` of the tables [O] on each set of nodes; none where all nodes may be paid.

    Args:
        tables: with prices.
        most_price: money per hour that a set costs at most.
    """
    nodes = _nodes_of(tables)
    if sum(p * n for p, n in zip(nodes.price, nodes.count, strict=True)) <= most_price:
        return
    memory = [float(b * g) for b, g in zip(tables.usable_bytes, nodes.gpus, strict=True)]
    speed = [s * g for s, g in zip(_speeds(tables), nodes.gpus, strict=True)]
    sets = [_most_worth(nodes, worth, most_price) for worth in (speed, memory)]
    for first in _by_worth(nodes, speed):
        if len(sets) < MOST_SETS:
            sets.append(_greedy(nodes, speed, first, most_price))
    for counts in dict.fromkeys(sets):
        if any(counts):
            yield _room_on(tables, nodes, counts)


def _nodes_of(t: Tables) -> _Nodes:
    gpus = [int(g) for g in t.paid_gpus]
    price = [float(p) * g for p, g in zip(t.gpu_price, gpus, strict=True)]
    room = [max(t.room[t.option_type == kind], default=0) for kind in range(len(gpus))]
    return _Nodes(price, [-(-int(r) // g) for r, g in zip(room, gpus, strict=True)], gpus)


def _speeds(t: Tables) -> list[float]:
    """[T] blocks of a sample per second and GPU, of the fastest option of a class."""
    found = [0.0] * len(t.node_gpus)
    for option, kind in enumerate(t.option_type):
        sample_s = t.block_s[option, :, :, 1].min(axis=1) / t.sizes
        least_s = float(sample_s.min()) * int(t.option_tp[option])
        if 0 < least_s < math.inf:
            found[kind] = max(found[kind], 1 / least_s)
    return found


def _by_worth(nodes: _Nodes, worth: Sequence[float]) -> list[int]:
    """The classes, those of most worth for their money first."""
    ratio = [w / p if p else math.inf for w, p in zip(worth, nodes.price, strict=True)]
    return sorted(range(len(ratio)), key=lambda kind: (-ratio[kind], kind))


def _greedy(
    nodes: _Nodes, worth: Sequence[float], first: int, most_price: float
) -> tuple[int, ...]:
    """One node of a class, then as many of each as may be paid, the most worth for money first."""
    counts, left = [0] * len(worth), most_price
    for kind, most in [(first, 1), *((k, nodes.count[k]) for k in _by_worth(nodes, worth))]:
        price, there = nodes.price[kind], min(most, nodes.count[kind] - counts[kind])
        taken = min(there, int(left / price)) if price else there
        counts[kind] += taken
        left -= taken * price
    return tuple(counts)


def _most_worth(nodes: _Nodes, worth: Sequence[float], most_price: float) -> tuple[int, ...]:
    """Nodes of most worth for the money; nearly so where partial sets are too many to keep."""
    sets: list[tuple[float, float, tuple[int, ...]]] = [(0.0, 0.0, ())]  # price, -worth, counts
    for price, one, count in zip(nodes.price, worth, nodes.count, strict=True):
        most = count if price == 0 else min(count, int(most_price / price))
        numbers = sorted({most} | {n * most // 8 for n in range(8)} | set(range(min(most, 8))))
        longer = sorted(
            (paid + n * price, less - n * one, (*counts, n))
            for paid, less, counts in sets
            for n in numbers
            if paid + n * price <= most_price
        )
        front: list[tuple[float, float, tuple[int, ...]]] = []
        for entry in longer:
            if not front or entry[1] < front[-1][1]:
                front.append(entry)
        step = -(-len(front) // KEPT)
        sets = front[::-1][::step][::-1]  # with the one of most worth
    return sets[-1][2]


def _room_on(t: Tables, nodes: _Nodes, counts: Sequence[int]) -> Ints:
    """Room on so many nodes of each class."""
    whole = np.array(counts) * np.array(nodes.gpus) // t.node_gpus  # a node may be of many hosts
    of = t.option_type
    groups = t.node_gpus[of] // t.option_tp
    return np.minimum(t.room, whole[of] * groups * t.option_tp)
