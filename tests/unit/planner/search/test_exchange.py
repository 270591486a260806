"""Plans that other lines leave are taken, and are nobody else's afterwards."""

from __future__ import annotations

import math

import pytest

from planner.estimator.build_tables import pricing_of
from planner.request import PlanRequest
from planner.search.exchange import Exchange
from planner.search.kernel_search import KernelSearch, wishes_of
from tests.builders import demo_profile, nodes, workload

ASKED = PlanRequest(workload(), nodes("fast-0:2 fast-1:2 slow-0:2"))


@pytest.fixture(scope="module")
def pricing():
    return pricing_of(ASKED.workload, ASKED.composition, demo_profile())


def kernel_of(pricing, steps: int) -> KernelSearch:
    kernel = KernelSearch(pricing, wishes_of(ASKED), steps)
    kernel.start()
    kernel.walk(lambda: math.inf, kernel.evaluations + steps, templates=8)
    return kernel


def test_without_other_lines_nothing_is_taken(pricing):
    kernel = kernel_of(pricing, 10)
    before = list(kernel.recipes())
    assert Exchange().take(kernel) == 0
    assert list(kernel.recipes()) == before


def test_the_best_plans_of_all_lines_come_together(pricing):
    one, two, three = (kernel_of(pricing, steps) for steps in (1, 300, 500))
    exchange = Exchange()
    exchange.leave(1, two)
    exchange.leave(2, three)
    assert exchange.take(one) == two.evaluations + three.evaluations
    assert one.best == min(two.best, three.best)


def test_what_was_taken_once_is_not_taken_again(pricing):
    one, two, afresh = kernel_of(pricing, 1), kernel_of(pricing, 300), kernel_of(pricing, 1)
    two.elites.value[:] *= 0.5
    exchange = Exchange()
    exchange.leave(1, two)
    assert exchange.take(one) == exchange.take(afresh) == two.evaluations
    assert one.best == two.best < afresh.best


def test_a_line_that_goes_on_does_not_change_what_it_left(pricing):
    one, two = kernel_of(pricing, 1), kernel_of(pricing, 300)
    left = two.best
    exchange = Exchange()
    exchange.leave(1, two)
    two.elites.value[:] = 0.0
    exchange.take(one)
    assert one.best == left
