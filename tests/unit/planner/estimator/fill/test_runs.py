"""Runs of stages on the nodes of a class, against all ways to put them there."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.fill.runs import CUT, PIECE, cut_runs, put_runs
from planner.estimator.unplaced_plan import new_plan
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile

GPUS = 8


WORKLOAD = Workload(model=find_model("llama3-8b"), global_batch=2048, sequence_length=2048)


@cache
def tables():
    pricing = pricing_of(WORKLOAD, Composition.from_text("h100=3x8"), find_profile(WORKLOAD))
    assert pricing is not None
    assert pricing.tables.option_tp[0] == 1
    return pricing.tables


def cut(nodes: dict[int, int], *templates: tuple[int, int]) -> list[tuple[int, int]]:
    """(replicas that are cut, GPUs of their largest piece) of templates (stages, replicas), TP 1.

    There are so many nodes by their GPUs.
    """
    plan, by_gpus = new_plan(), np.zeros((1, GPUS + 1), np.int64)
    for gpus, number in nodes.items():
        by_gpus[0, gpus] = number
    plan.number[0] = len(templates)
    for k, (depth, replicas) in enumerate(templates):
        plan.depth[k], plan.replicas[k] = depth, replicas
    runs, found = (np.zeros((*shape, GPUS + 1), np.int64) for shape in ((2, 1), (4,)))
    number = np.zeros(len(templates), np.int64)
    piece = np.full((len(templates), 1), GPUS)
    is_cut = cut_runs(tables()._replace(nodes=by_gpus), plan, runs, found, number, piece)
    assert is_cut == bool(number.any())
    return list(zip(number.tolist(), piece[:, 0].tolist(), strict=True))


def packs(runs: tuple[int, ...], free: tuple[int, ...]) -> bool:
    """Whether all runs stand whole in some way: tries every node for each."""
    if not runs:
        return True
    return any(
        room >= runs[0] and packs(runs[1:], (*free[:n], room - runs[0], *free[n + 1 :]))
        for n, room in enumerate(free)
        if room not in free[:n]
    )


@pytest.mark.parametrize(
    ("nodes", "gpus", "whole"),
    [({8: 3}, 5, 3), ({8: 3}, 4, 6), ({8: 3}, 3, 6), ({8: 1, 6: 2, 3: 1}, 3, 7), ({1: 4}, 1, 4)],
)
def test_a_node_holds_as_many_runs_as_its_gpus_divided_by_theirs(nodes, gpus, whole):
    assert sum(number * (size // gpus) for size, number in nodes.items()) == whole
    assert cut(nodes, (gpus, whole)) == [(0, GPUS)]


def test_a_run_that_no_node_has_room_for_takes_what_the_emptiest_has():
    assert cut({8: 3}, (5, 4)) == [(1, 3)]  # three nodes have 3 GPUs left
    assert cut({8: 3}, (4, 1), (5, 4)) == [(1, 3), (1, 3)]
    assert cut({8: 2}, (7, 2), (2, 1)) == [(0, GPUS), (1, 1)]


def test_replicas_of_the_last_templates_are_cut():
    assert cut({8: 3}, (5, 2), (5, 2)) == [(0, GPUS), (1, 3)]


def test_a_tp_group_is_not_cut_but_takes_its_room_first():
    several, alone, nodes = (np.zeros(GPUS + 1, np.int64) for _ in range(3))
    nodes[GPUS], several[5], alone[4] = 2, 2, 1
    found = np.zeros((4, GPUS + 1), np.int64)
    assert not put_runs(several, alone, nodes, False, found)
    assert put_runs(several, alone, nodes, True, found)
    assert (found[CUT, 5], found[PIECE, 5]) == (1, 4)  # beside the group


@pytest.mark.parametrize(
    ("text", "by_type", "expected"),
    [
        ("h100=3x8+2x4", False, [{4: 2}, {8: 3}]),
        ("h100=3x8+2x4", True, [{4: 2, 8: 3}]),
        ("a6000=1x2,h100=5x6+1x3", True, [{2: 1}, {3: 1, 6: 5}]),
    ],
)
def test_tables_have_the_nodes_of_a_class_by_their_gpus(text, by_type, expected):
    pricing = pricing_of(
        WORKLOAD, Composition.from_text(text), find_profile(WORKLOAD), by_type=by_type
    )
    assert pricing is not None
    found = [{g: n for g, n in enumerate(row.tolist()) if n} for row in pricing.tables.nodes]
    assert found == expected


@given(
    st.dictionaries(st.integers(1, GPUS), st.integers(1, 2), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, GPUS), st.integers(1, 3)), min_size=1, max_size=3),
)
def test_runs_that_stand_whole_do_so_in_some_way(nodes, templates):
    runs = tuple(sorted(Counter(dict(templates)).elements(), reverse=True))
    free = tuple(sorted(Counter(nodes).elements()))
    templates = list(dict(templates).items())
    if sum(runs) > sum(free):
        return  # TP groups take no more GPUs than there are
    is_cut = any(number for number, _ in cut(nodes, *templates))
    assert is_cut or packs(runs, free)
    sizes = {*runs, *free}
    if all(large % small == 0 for large in sizes for small in sizes if large >= small):
        assert is_cut != packs(runs, free)
