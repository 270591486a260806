"""Placements up to exchange: each is legal, and every legal one equals one of them."""

from __future__ import annotations

from itertools import product

import pytest

from planner.composition import Composition, Node
from planner.every_placement import every_placement, placed_stages
from planner.plan import FilledTemplate, Plan, Stage, faults
from tests.builders import nodes, workload

FAST = "demo-fast"
BAGS = {
    "one stage, three replicas": ((((FAST, 1),), 3),),
    "two stages, two replicas": ((((FAST, 1), (FAST, 1)), 2),),
    "TP 2 beside TP 1": ((((FAST, 2), (FAST, 1)), 1), (((FAST, 1),), 2)),
    "two equal templates": ((((FAST, 1), (FAST, 1)), 1), (((FAST, 1), (FAST, 1)), 1)),
}


def legal(bag, composition):
    """Every assignment of nodes, as rows of replicas."""
    slots = [tp for structure, n in bag for _ in range(n) for _, tp in structure]
    for flat in product(range(len(composition.nodes)), repeat=len(slots)):
        taken = [0] * len(composition.nodes)
        for node, tp in zip(flat, slots, strict=True):
            taken[node] += tp
        if all(t <= n.gpus for t, n in zip(taken, composition.nodes, strict=True)):
            where, rest = [], list(flat)
            for structure, n in bag:
                rows = []
                for _ in range(n):
                    rows.append(tuple(rest[: len(structure)]))
                    del rest[: len(structure)]
                where.append(tuple(rows))
            yield tuple(where)


def names(bag, where, composition, *, ordered):
    """What is left of a placement when nodes that are alike have no names of their own."""
    rows = []
    for renamed in renamings(composition):
        templates = [
            (outline, *(rs if ordered else sorted(rs)))
            for outline, rs in zip(
                bag, [[tuple(renamed[n] for n in r) for r in rows] for rows in where], strict=True
            )
        ]
        rows.append(sorted(templates))
    return repr(min(rows))


def renamings(composition):
    kinds = [(n.gpu_type, n.gpus, n.speed_factor) for n in composition.nodes]
    for target in product(range(len(kinds)), repeat=len(kinds)):
        if len(set(target)) == len(kinds) and all(
            kinds[i] == kinds[t] for i, t in enumerate(target)
        ):
            yield target


@pytest.mark.parametrize("ordered", [False, True], ids=["replicas alike", "replicas in order"])
@pytest.mark.parametrize("text", ["fast-0:2 fast-1:2 fast-2:1", "fast-0:4 fast-1:1"])
@pytest.mark.parametrize("bag", BAGS.values(), ids=BAGS)
def test_every_placement_is_met_once_up_to_exchange(bag, text, ordered):
    composition = nodes(text)
    met = [
        names(bag, where, composition, ordered=ordered)
        for where in every_placement(bag, composition, ordered=ordered)
    ]
    all_of_them = {
        names(bag, where, composition, ordered=ordered) for where in legal(bag, composition)
    }
    assert set(met) == all_of_them
    assert ordered or len(met) <= 2 * len(all_of_them)


def test_a_straggler_is_not_like_other_nodes():
    composition = Composition((Node("a", FAST, 1), Node("b", FAST, 1, speed_factor=0.8)))
    bag = ((((FAST, 1),), 1),)
    assert list(every_placement(bag, composition, ordered=False)) == [(((0,),),), (((1,),),)]


def test_placed_stages_are_without_fault():
    composition = nodes("fast-0:2 fast-1:2")
    bag = ((((FAST, 2), (FAST, 1)), 1),)
    template = FilledTemplate((Stage(FAST, 2, 3), Stage(FAST, 1, 3)), 1, (4,))
    for where in every_placement(bag, composition, ordered=False):
        plan = Plan((template,), placed_stages((template,), where, composition))
        assert not faults(plan, workload(4), composition)
