"""Brute force answers with a plan the evaluator agrees with, or one sentence.

That no plan is better is the claim of `tests/oracle`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.brute_force import brute_force
from planner.composition import Composition, Node
from planner.cost import price
from planner.errors import Infeasible
from planner.plan import check
from planner.profile import Profile
from planner.request import PlanRequest
from tests.builders import demo_profile, nodes, workload


def few_sizes(profile: Profile, sizes: tuple[int, ...] = (1, 2)) -> Profile:
    """The profile with these micro-batches only."""
    kept = {key: cost for key, cost in profile.layers.items() if key[3] in sizes}
    return replace(profile, layers=kept)


def test_the_answer_is_a_plan_that_the_evaluator_prices_alike():
    profile = few_sizes(demo_profile())
    request = PlanRequest(workload(12), nodes("fast-0:2 slow-0:1 slow-1:1"))
    answer = brute_force(request, profile)
    check(answer.plan, request.workload, request.composition)
    priced = price(answer.plan, request.workload, request.composition, profile)
    assert priced == answer.price
    assert answer.plan.gpus + sum(count for _, count in answer.idle) == 4
    assert brute_force(request, profile).plan.digest == answer.plan.digest


def test_more_holders_than_any_plan_reaches_are_noted():
    profile = few_sizes(demo_profile())
    answer = brute_force(PlanRequest(workload(4), nodes("fast-0:2"), min_holders=2), profile)
    assert answer.holders_min == 1
    assert "every piece of the state should live on 2 nodes" in answer.notes[0]


@pytest.mark.parametrize(
    ("request_", "sizes", "found"),
    [
        (PlanRequest(workload(4), nodes("fast-0:4 fast-1:4 fast-2:1")), (1, 2), "9 GPUs"),
        (PlanRequest(workload(4), nodes("fast-0:3")), (1, 2), "a node of 3 GPUs"),
        (PlanRequest(workload(4), nodes("fast-0:4")), (1, 2, 4), "micro-batches 1, 2, 4"),
    ],
    ids=["too many GPUs", "a node of three", "three micro-batch sizes"],
)
def test_a_request_that_is_too_large_is_refused_with_the_limits(request_, sizes, found):
    with pytest.raises(Infeasible, match=rf"at most 8 GPUs of 2 types.*{found}.*another method"):
        brute_force(request_, few_sizes(demo_profile(), sizes))


def test_a_model_that_does_not_fit_is_told_what_it_lacks():
    profile = few_sizes(demo_profile())
    tight = {name: replace(kind, memory_bytes=600_000) for name, kind in profile.types.items()}
    with pytest.raises(Infeasible, match=r"memory binds.*bytes on a GPU, 100,000 are usable"):
        brute_force(PlanRequest(workload(4), nodes("fast-0:2")), replace(profile, types=tight))


def test_a_batch_that_no_sharing_makes_up_is_said():
    profile = few_sizes(demo_profile(), (2,))
    with pytest.raises(Infeasible, match="none trains exactly 3 samples"):
        brute_force(PlanRequest(workload(3), nodes("fast-0:4")), profile)


def test_without_a_gpu_that_is_profiled_there_is_no_plan():
    with pytest.raises(Infeasible, match="none of the GPUs has a profile"):
        brute_force(PlanRequest(workload(3), Composition((Node("n", "b200", 4),))), demo_profile())
