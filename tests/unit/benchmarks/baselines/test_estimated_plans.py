"""A search by estimates: what is compiled is loaded first, and then its budget begins."""

from __future__ import annotations

import pytest

from benchmarks.baselines.estimated_plans import answer_by_estimates
from benchmarks.baselines.interface import Budget
from planner.errors import UnprofiledConfiguration
from planner.estimator.top_k import new_top_k
from tests.baselines import question

pytestmark = pytest.mark.slow  # loads the estimator


def test_what_is_compiled_is_loaded_before_the_budget_begins():
    order = []

    def search(pricing, meter):
        order.append("search")
        while meter.goes_on():
            meter.priced += 1
        return new_top_k()

    asked = question("h100=1x2", layers=3)
    found = answer_by_estimates(
        asked, Budget(evaluations=7), lambda _: order.append("load"), search
    )
    assert order == ["load", "search"]
    assert (found.plans, found.plans_priced, found.finished) == ((), 7, False)


def test_a_type_without_a_profile_is_refused_before_anything_is_loaded():
    with pytest.raises(UnprofiledConfiguration):
        answer_by_estimates(question("nonsense=1x2", layers=3), Budget(), pytest.fail, pytest.fail)
