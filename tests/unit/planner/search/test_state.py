"""The state of a search: seconds that count, stages told once, plans placed once."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.cluster.composition import Composition, Node
from planner.cost.batch_split import Lane
from planner.cost.money import plan_price
from planner.request import PlanRequest
from planner.search.budget import Budget
from planner.search.candidate import Evaluator, UnplacedCandidate
from planner.search.fill import Filling
from planner.search.solution_pool import SolutionPool
from planner.search.state import HOPELESS_RATIO, PLACED, SearchState, kind_of
from tests.builders import MODEL, demo_profile, nodes, workload

COMPOSITION = nodes("fast-0:2 fast-1:1")


class Clock:
    """Seconds as a test sets them; each look may take some."""

    def __init__(self) -> None:
        self.s, self.look_s = 100.0, 0.0

    def __call__(self) -> float:
        self.s += self.look_s
        return self.s


def begun(**limits) -> tuple[SearchState, Clock]:
    clock = Clock()
    request = PlanRequest(workload=workload(), composition=COMPOSITION, **limits)
    evaluator = Evaluator(workload=workload(), composition=COMPOSITION, profile=demo_profile())
    return SearchState(request, evaluator, Budget(request, clock)), clock


def unplaced(*degrees: int) -> UnplacedCandidate:
    """One replica with a stage of each of these TP degrees, as evenly filled as may be."""
    depth = len(degrees)
    layers = tuple(MODEL.layers // depth + (s < MODEL.layers % depth) for s in range(depth))
    structure = tuple(("demo-fast", tp) for tp in degrees)
    return ((structure, 1, Filling(layers=layers, lane=Lane(2, 1.0, 2.0, 16))),)


def place(one: SearchState, *unplaced_candidates: UnplacedCandidate) -> None:
    one.place(((1.0, unplaced) for unplaced in unplaced_candidates), len(unplaced_candidates))


def test_without_a_budget_in_seconds_time_never_ends():
    one, clock = begun(budget_evaluations=9)
    clock.s += 1e6
    assert one.budget.left_s == one.left_to_search_s == math.inf


def test_seconds_left_out_do_not_count_against_the_budget():
    one, clock = begun(budget_s=2.0)
    clock.s += 1.5
    assert one.budget.left_s == 0.5
    one.budget.exclude(1.0)
    assert one.budget.left_s == 1.5
    assert one.budget.passed_s == 0.5


def test_a_step_that_gains_nothing_more_is_told_once():
    one, clock = begun()
    for name in ("columns", "local search", "columns"):
        begun_s = clock.s
        clock.s += 1.0
        one.record(name, begun_s)
    assert [(step.method, step.seconds) for step in one.steps] == [
        ("local search", 1.0),
        ("columns", 2.0),
    ]


def test_a_step_that_gains_is_told_again():
    one, clock = begun()
    one.record("columns", clock.s)
    place(one, unplaced(2))
    one.record("columns", clock.s)
    first, second = one.steps
    assert first.throughput_samples_s == 0 < second.throughput_samples_s


def test_time_to_place_the_last_plans_is_kept_back():
    one, clock = begun(budget_s=2.0)
    assert one.left_to_search_s == one.budget.left_s
    clock.look_s = 0.01
    place(one, unplaced(2))  # looks at the clock before and after
    clock.look_s = 0.0
    kept_s = one.budget.left_s - one.left_to_search_s
    assert kept_s == pytest.approx(PLACED * 0.01)


def test_a_plan_is_placed_and_priced_once():
    one, _ = begun()
    place(one, unplaced(2), unplaced(2))
    place(one, unplaced(2))
    assert len(one.pool.found) == 1


def test_when_it_is_late_one_plan_is_enough():
    one, clock = begun(budget_s=1.0)
    clock.s += 5.0
    place(one, unplaced(1, 1), unplaced(2))
    assert len(one.pool.found) == 1  # an answer, however late


def seconds_of(candidate: UnplacedCandidate) -> float:
    """Its price."""
    one, _ = begun()
    place(one, candidate)
    assert one.pool.best is not None
    return one.pool.best.cost.iteration_s


def test_the_first_plan_that_is_better_ends_the_placing_of_rollouts():
    one, _ = begun()
    slow, fast = unplaced(2), unplaced(1, 1)
    assert seconds_of(fast) < seconds_of(slow)
    one.place_until_better(iter([(seconds_of(slow), slow), (2 * seconds_of(slow), unplaced(2, 1))]))
    assert len(one.pool.found) == 1
    one.place_until_better(iter([(seconds_of(fast), fast), (seconds_of(slow), slow)]))
    assert len(one.pool.found) == 2


def test_rollouts_go_on_being_placed_where_the_best_is_slower_than_estimated():
    slow, fast = unplaced(2), unplaced(1, 1)
    rows = [(0.5 * seconds_of(fast), slow), (seconds_of(fast), fast), (9.0, unplaced(2, 1))]
    one, _ = begun()
    one.place_until_better(iter(rows))
    assert [found.cost.iteration_s for found in one.pool.found] == [
        seconds_of(slow),
        seconds_of(fast),
    ]
    late, clock = begun(budget_s=1.0)
    clock.s += 5.0
    late.place_until_better(iter(rows))
    assert len(late.pool.found) == 1


def test_where_a_plan_runs_rollouts_are_placed_only_while_there_is_time():
    late, clock = begun(budget_s=1.0)
    place(late, unplaced(1, 1))  # as good as the running one
    clock.s += 5.0
    late.place_until_better(iter([(9.0, unplaced(2)), (9.0, unplaced(2, 1))]))
    assert len(late.pool.found) == 2


def test_where_money_counts_a_plan_goes_to_the_cheapest_nodes():
    dear = [replace(node, price=9.0) for node in nodes("fast-0:2").nodes]
    cheap = [Node(name=f"slow-net-{i}", gpu_type="demo-fast", gpus=1, price=1.0) for i in range(2)]
    asked = PlanRequest(
        workload=workload(), composition=Composition((*dear, *cheap)), objective="cost"
    )
    pool = SolutionPool(asked)
    evaluator = Evaluator(
        workload=asked.workload, composition=asked.composition, profile=demo_profile()
    )
    ways = list(evaluator.placed(unplaced(1, 1)))
    prices = {plan_price(one.plan, asked.composition) for one in ways}
    chosen = pool.choose(ways)
    assert len(prices) > 1, "there is one way only"
    assert chosen is min(ways, key=pool.objective)
    assert pool.choose(()) is None


def test_a_plan_that_is_estimated_far_worse_is_not_placed():
    one, _ = begun()
    one.place(iter([(1.0, unplaced(2))]), 1)
    one.place(iter([(1.0 * HOPELESS_RATIO + 0.01, unplaced(1, 1))]), 1)
    assert len(one.pool.found) == 1
    one.place(iter([(1.0 * HOPELESS_RATIO, unplaced(1, 1))]), 1)
    assert len(one.pool.found) == 2


def test_a_worse_plan_is_placed_while_too_few_nodes_hold_the_state():
    one, _ = begun(min_holders=2)
    one.place(iter([(1.0, unplaced(2)), (9.0, unplaced(1, 1))]), 2)
    assert len(one.pool.found) == 2


def test_a_plan_is_of_the_kind_of_its_largest_template_on_each_set_of_gpu_types():
    fast, deep, slow = (("demo-fast", 2),), (("demo-fast", 1),) * 3, (("demo-slow", 1),)
    fill = Filling(layers=(6,), lane=Lane(2, 1.0, 2.0, 16))
    assert kind_of(((fast, 4, fill), (deep, 2, fill))) == {fast}
    assert kind_of(((deep, 3, fill), (fast, 4, fill))) == {deep}
    assert kind_of(((fast, 4, fill), (slow, 1, fill))) == {fast, slow}


def test_the_best_plan_of_each_other_kind_is_placed_though_one_kind_fills_the_pool():
    one, _ = begun(budget_s=100.0)
    one.place(iter([(1.0, unplaced(2))]), 1)
    one.note(iter([(1.0, unplaced(2)), (1.001, unplaced(1, 1)), (9.0, unplaced(2, 1))]))
    one.note(iter([(1.0, unplaced(2))]))  # what was noted before still waits
    one.place_other_kinds()
    assert [len(found.plan.templates[0].stages) for found in one.pool.found] == [1, 2]
    one.note(iter([(1.0, unplaced(1, 1))]))
    one.place_other_kinds()
    assert len(one.pool.found) == 2, "its kind is placed already"


def test_when_it_is_late_no_other_kind_is_placed():
    one, clock = begun(budget_s=1.0)
    one.place(iter([(1.0, unplaced(2))]), 1)
    one.note(iter([(1.0, unplaced(1, 1))]))
    clock.s += 5.0
    one.place_other_kinds()
    assert len(one.pool.found) == 1
