"""One line of search: its turns follow from its seed, and are told one by one."""

from __future__ import annotations

import math

import pytest

from planner.estimator.build_tables import pricing_of
from planner.request import PlanRequest
from planner.search.kernel_search import KernelSearch, wishes_of
from planner.search.line import Line
from tests.builders import demo_profile, nodes, workload

ASKED = PlanRequest(workload(), nodes("fast-0:2 fast-1:2 slow-0:2"))
MOST = 1500


@pytest.fixture(scope="module")
def pricing():
    return pricing_of(ASKED.workload, ASKED.composition, demo_profile())


def line_of(pricing, seed: int = 0) -> Line:
    return Line(pricing, wishes_of(ASKED), seed, lambda: 0.0, lambda: math.inf)


def run(line: Line, method="auto", proposals: KernelSearch | None = None) -> list[str]:
    names: list[str] = []
    line.run(method, MOST, proposals, lambda name, _: names.append(name))
    return names


def test_equal_seeds_take_equal_turns_to_equal_plans(pricing):
    one, two = line_of(pricing), line_of(pricing)
    assert run(one) == run(two)
    assert list(one.kernel.recipes()) == list(two.kernel.recipes())
    assert one.kernel.evaluations == two.kernel.evaluations


def test_it_starts_with_plans_and_ends_with_better_ones(pricing):
    line = line_of(pricing)
    before = line.kernel.best
    assert before < math.inf
    names = run(line)
    assert line.kernel.best <= before
    assert {"columns", "local search"} <= set(names)


@pytest.mark.parametrize("method", ["search", "columns"])
def test_an_engine_asked_for_alone_comes_first(pricing, method):
    names = run(line_of(pricing), method)
    assert ("columns" in names) == (method == "columns")


def test_proposals_join(pricing):
    better = line_of(pricing, 1)
    run(better)
    line = line_of(pricing)
    run(line, "search", better.kernel)
    assert line.kernel.best <= better.kernel.best
