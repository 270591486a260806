"""Sets of nodes keep to the money, and start a search where all nodes together are too dear."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.composition import Composition, Node
from planner.cost.money import plan_price
from planner.estimator.build_tables import pricing_of
from planner.model.catalogue import find_model
from planner.model.workload import usual_workload
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.annealing.affordable_nodes import affordable_rooms
from planner.search.driver import search

WORKLOAD = usual_workload(find_model("qwen3-32b"))
ROWS = (
    ("a", "rtx-3090", 4, 1.0),
    ("b", "h100", 8, 4.0),
    ("c", "a100-40", 8, 4.0),
    ("d", "l4", 8, 7.0),
    ("e", "a100-80", 8, 6.0),
)
NODES = tuple(Node(name=n, gpu_type=t, gpus=g, price=p) for n, t, g, p in ROWS)
COMPOSITION = Composition(NODES)


@pytest.fixture(scope="module")
def tables():
    return pricing_of(WORKLOAD, COMPOSITION, find_profile(WORKLOAD)).tables


@pytest.mark.parametrize("most_price", [0.5, 1.0, 8.0, 10.0, 21.9])
def test_the_nodes_of_a_set_cost_no_more_than_the_limit(tables, most_price):
    sets = list(affordable_rooms(tables, most_price))
    assert bool(sets) == (most_price >= 1.0)
    for room in sets:
        used = {int(kind) for kind, gpus in zip(tables.option_type, room, strict=True) if gpus}
        paid = sum(tables.gpu_price[kind] * tables.paid_gpus[kind] for kind in used)
        assert 0 < paid <= most_price
        assert (room <= tables.room).all()


def test_without_a_limit_that_binds_there_is_no_set(tables):
    assert list(affordable_rooms(tables, 22.0)) == []


def test_of_many_nodes_as_many_are_taken_as_may_be_paid():
    nodes = (replace(NODES[1], name=f"b{index}") for index in range(40))
    composition = Composition((*nodes, NODES[4]))
    tables = pricing_of(WORKLOAD, composition, find_profile(WORKLOAD)).tables
    h100 = tables.option_type == list(tables.gpu_price).index(0.5)
    rooms = [int(room[h100].max()) for room in affordable_rooms(tables, 101.0)]
    assert max(rooms) == 25 * 8


def test_two_nodes_that_may_be_paid_hold_a_model_that_none_holds_alone():
    request = PlanRequest(
        workload=WORKLOAD,
        composition=COMPOSITION,
        max_price=10.0,
        method="search",
        budget_evaluations=800,
    )
    answer = search(request, find_profile(WORKLOAD))
    assert plan_price(answer.plan, COMPOSITION) == 10.0
    assert answer.plan.nodes == ("b", "e")
