"""Workers on several threads: how many there are, and that their plans come together."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from planner.cluster.composition import Composition
from planner.cores import usable_cores
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.plans.plan import faults
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.budget import Budget
from planner.search.driver import search
from planner.search.portfolio import USUAL_THREADS, threads_of
from planner.search.searcher import Searcher
from tests.builders import nodes

WORKLOAD = Workload(
    model=find_model("llama3-8b"), global_batch=512, sequence_length=2048, precision="fp16"
)
ASKED = PlanRequest(
    workload=WORKLOAD,
    composition=Composition.from_text("h100=4x4,a100-40=6x4"),
    budget_s=0.3,
    budget_evaluations=None,
)


@pytest.mark.parametrize(
    ("limits", "threads"),
    [
        ({"threads": 3}, 3),
        ({"threads": 3, "budget_evaluations": 100}, 1),
        ({"threads": 3, "budget_s": None, "composition": nodes("fast-0:2")}, 1),
        ({}, min(USUAL_THREADS, usable_cores())),
    ],
)
def test_as_many_threads_as_asked_for_where_only_seconds_end_them(limits, threads):
    request = replace(ASKED, **limits)
    assert threads_of(request, Budget(request, float)) == threads


@pytest.mark.parametrize("method", ["auto", "search", "columns"])
def test_three_threads_find_one_plan_and_count_what_all_priced(method):
    found = search(replace(ASKED, method=method, threads=3), find_profile(WORKLOAD))
    assert not faults(found.plan, WORKLOAD, ASKED.composition)
    evaluations = [step.evaluations for step in found.search_steps]
    assert evaluations == sorted(evaluations)
    assert found.search_steps[-1].throughput_samples_s == found.cost.throughput_samples_s


def test_a_search_that_plans_end_is_the_same_with_any_number_of_threads():
    asked = replace(ASKED, budget_s=None, budget_evaluations=2000)
    profile = find_profile(WORKLOAD)
    one, many = (search(replace(asked, threads=threads), profile) for threads in (1, 4))
    assert one.plan == many.plan
    assert [s.evaluations for s in one.search_steps] == [s.evaluations for s in many.search_steps]


def test_what_goes_wrong_in_another_thread_is_told(monkeypatch):
    start = Searcher.start

    def fail(searcher, *fits):
        if threading.current_thread() is not threading.main_thread():
            raise ZeroDivisionError("in the second thread")
        start(searcher, *fits)

    monkeypatch.setattr(Searcher, "start", fail)
    with pytest.raises(ZeroDivisionError, match="second thread"):
        search(replace(ASKED, threads=2), find_profile(WORKLOAD))


@pytest.mark.parametrize("evaluations", [None, 10**6])
def test_in_few_hundredths_of_a_second_the_plans_of_the_policy_are_placed_first(evaluations):
    asked = replace(ASKED, budget_s=0.05, budget_evaluations=evaluations)
    found = search(asked, find_profile(WORKLOAD))
    assert [step.method for step in found.search_steps][:2] == ["policy", "uniform"]
