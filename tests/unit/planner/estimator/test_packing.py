"""What pipelines wait for that do not find the nodes their fill counts on."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.elite_set import load_elite
from planner.estimator.packing import break_up, packing_seconds, put_runs, tightest
from planner.estimator.sharing import pipeline_seconds
from planner.estimator.unplaced_plan import new_plan
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.candidate import Judge
from planner.search.worker import Worker, limits_of

UNEVEN = "a100-80=7x8"  # pipelines of seven stages leave a GPU on each node


def free_of(**levels: int) -> np.ndarray:
    """`free_of(n8=2)`: two nodes with eight free GPUs each."""
    free = np.zeros(9, np.int64)
    for name, nodes in levels.items():
        free[int(name[1:])] = nodes
    return free


@pytest.fixture(scope="module")
def search():
    """(request, pricing, kernel with every template of one kind of stage)."""
    workload = Workload(find_model("llama3-8b"), 2048, 2048)
    request = PlanRequest(workload, Composition.from_text(UNEVEN))
    pricing = pricing_of(workload, request.composition, find_profile(workload))
    assert pricing is not None
    kernel = Worker(pricing, limits_of(request), 0)
    return request, pricing, kernel


def plan_of(search, depth: int, replicas: int):
    """The best filling of a template of so many stages of one GPU."""
    _, pricing, kernel = search
    plan = kernel._now
    plan.number[0], plan.depth[0], plan.replicas[0] = 1, depth, replicas
    plan.options[0, :depth] = 0
    elites = kernel.elites
    elites.number[0] = 0
    kernel._anneal(kernel.limits, elites, 0, 0.01, 0.01)
    kept = new_plan()
    load_elite(elites, 0, kept)
    return pricing.tables, kept, kernel


def test_the_tightest_node_with_room_is_taken():
    assert tightest(free_of(n3=1, n5=1, n8=1), 4) == 5
    assert tightest(free_of(n3=1), 4) == 0


def test_runs_that_find_their_nodes_cross_nowhere():
    free = free_of(n8=2)
    assert put_runs(free, 3, 4, 2) == 0
    assert free.tolist() == [0, 0, 2, 0, 0, 0, 0, 0, 0]


def test_a_run_without_a_node_is_broken_up_over_what_is_left():
    free = free_of(n8=2)
    assert put_runs(free, 5, 3, 2) == 1  # three GPUs here and two there
    assert free.tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0]


def test_no_more_crossings_of_a_run_count_than_a_stage_can_wait_for():
    assert put_runs(free_of(n1=7), 7, 1, 2) == 2
    assert break_up(free_of(n1=7), 7) == 7


def test_what_does_not_fit_at_all_ends(search):
    assert break_up(free_of(n1=2), 5) == 2


def test_pipelines_that_fill_nodes_evenly_wait_for_nothing_more(search):
    tables, plan, kernel = plan_of(search, 4, 14)
    assert packing_seconds(tables, plan, kernel._work.price, 1.0) == 0.0


def test_the_replica_that_the_others_leave_no_node_is_slower(search):
    tables, plan, kernel = plan_of(search, 7, 7)
    assert packing_seconds(tables, plan, kernel._work.price, 1.0) == 0.0
    tables, plan, kernel = plan_of(search, 7, 8)
    assert packing_seconds(tables, plan, kernel._work.price, 1.0) > 0.0


def test_the_price_with_it_is_nearer_to_that_of_the_placed_plan(search):
    request, _, _ = search
    tables, plan, kernel = plan_of(search, 7, 8)
    ((value, recipe),) = kernel.recipes()
    judge = Judge(request.workload, request.composition, find_profile(request.workload))
    real_s = judge.settle(recipe).price.iteration_s
    added_s = packing_seconds(tables, plan, kernel._work.price, pipeline_seconds(tables, plan))
    assert abs(real_s - value) < abs(real_s - (value - added_s))
