"""Nothing is lost by what brute force cuts: on two or three GPUs it equals a product of all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.brute_force import brute_force
from planner.composition import Composition, Node
from planner.errors import Infeasible
from planner.profile import Profile
from planner.request import PlanRequest
from tests.oracle.instances import Instance, instances
from tests.oracle.naive import best_of_all

INSTANCES = {instance.name: instance for instance in instances()}


def shrunk(instance: Instance, layers: int, batch: int, **gpus: int) -> PlanRequest:
    """The instance's question with fewer layers, a smaller batch and other nodes."""
    asked = instance.request.workload
    model = replace(asked.model, layers=layers)
    if model.experts is not None:
        model = replace(model, experts=replace(model.experts, dense_blocks=min(1, layers - 1)))
    listed = (Node(name, f"type-{name[-1]}", count) for name, count in gpus.items())
    return replace(
        instance.request,
        workload=replace(asked, model=model, global_batch=batch),
        composition=Composition(tuple(listed)),
    )


@pytest.mark.parametrize("name", ["36-dense", "37-dense", "40-dense", "45-dense", "46-dense"])
@pytest.mark.parametrize("min_holders", [1, 2])
def test_nothing_is_lost_by_what_is_cut_of_dense_plans(name, min_holders):
    instance = INSTANCES[name]
    request = replace(shrunk(instance, 3, 6, one_a=2, two_a=1), min_holders=min_holders)
    assert_equal(request, instance.profile)


@pytest.mark.parametrize("name", [f"{index:02d}-moe" for index in range(1, 9)])
def test_nothing_is_lost_by_what_is_cut_of_plans_with_experts(name):
    instance = INSTANCES[name]
    assert_equal(shrunk(instance, 2, 4, one_a=2), instance.profile)


@pytest.mark.parametrize("name", ["06-moe", "07-moe", "41-dense", "42-dense"])
def test_nothing_is_lost_by_what_is_cut_of_plans_of_two_types(name):
    instance = INSTANCES[name]
    assert_equal(shrunk(instance, 2, 4, one_a=1, one_b=1), instance.profile)


def assert_equal(request: PlanRequest, profile: Profile) -> None:
    best = best_of_all(request, profile)
    if best is None:
        with pytest.raises(Infeasible):
            brute_force(request, profile)
        return
    answer = brute_force(request, profile)
    assert -min(answer.holders_min, request.min_holders) == best[0]
    assert answer.price.iteration_s == pytest.approx(best[1], rel=1e-12)
