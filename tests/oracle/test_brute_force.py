"""Nothing is lost by what brute force cuts: on two or three GPUs it equals a product of all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.composition import Composition, Node
from planner.profiles.profile import Profile
from planner.request import PlanRequest
from tests.oracle.brute_force import brute_force
from tests.oracle.instances import Instance, instances
from tests.oracle.naive import best_of_all

INSTANCES = {instance.name: instance for instance in instances()}


def shrunk(instance: Instance, layers: int, batch: int, **gpus: int) -> PlanRequest:
    """The instance's question with fewer layers, a smaller batch and other nodes."""
    asked = instance.request.workload
    model = replace(asked.model, layers=layers)
    if model.experts is not None:
        dense = min(model.experts.dense_blocks, layers - 1)
        model = replace(model, experts=replace(model.experts, dense_blocks=dense))
    listed = (
        Node(name=name, gpu_type=f"type-{name[-1]}", gpus=count) for name, count in gpus.items()
    )
    return replace(
        instance.request,
        workload=replace(asked, model=model, global_batch=batch),
        composition=Composition(tuple(listed)),
    )


DENSE = ("37-dense", "40-dense", "61-dense")
pytestmark = pytest.mark.slow
WITH_EXPERTS = tuple(f"{index:02d}-moe" for index in range(0, 24, 3))


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("min_holders", [1, 2])
def test_nothing_is_lost_by_what_is_cut_of_dense_plans(name, min_holders):
    instance = INSTANCES[name]
    request = replace(shrunk(instance, 3, 5, one_a=2, two_a=1), min_holders=min_holders)
    assert_equal(request, instance.profile)


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_nothing_is_lost_by_what_is_cut_of_experts_on_one_node(name):
    instance = INSTANCES[name]
    assert_equal(shrunk(instance, 2, 4, one_a=2), roomy(instance.profile))


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_nothing_is_lost_by_what_is_cut_of_experts_across_nodes(name):
    instance = INSTANCES[name]
    assert_equal(shrunk(instance, 2, 4, one_a=1, two_a=1), roomy(instance.profile))


@pytest.mark.parametrize("name", ["06-moe", "07-moe", "41-dense", "42-dense", "47-dense"])
def test_nothing_is_lost_by_what_is_cut_of_plans_of_two_types(name):
    instance = INSTANCES[name]
    assert_equal(shrunk(instance, 2, 4, one_a=1, one_b=1), roomy(instance.profile))


@pytest.mark.parametrize("name", ["03-moe", "37-dense", "52-dense"])
def test_nothing_is_lost_by_what_is_cut_of_recomputations(name):
    instance = INSTANCES[name]
    request = shrunk(instance, 2 if instance.is_moe else 3, 4, one_a=2)
    object.__setattr__(request.workload, "recompute", "auto")  # each stage has its own
    for scarce in (1, 3):
        types = {
            n: replace(kind, memory_bytes=kind.memory_bytes // scarce)
            for n, kind in instance.profile.types.items()
        }
        assert_equal(request, replace(instance.profile, types=types))


def roomy(profile: Profile) -> Profile:
    """The profile with twice the memory, as the shrunk compositions have fewer GPUs."""
    types = {
        n: replace(kind, memory_bytes=2 * kind.memory_bytes) for n, kind in profile.types.items()
    }
    return replace(profile, types=types)


def assert_equal(request: PlanRequest, profile: Profile) -> None:
    best = best_of_all(request, profile)
    answer = brute_force(request, profile)
    assert (answer is None) == (best is None)
    if answer is None:
        return
    assert -min(answer.holders, request.min_holders) == best[0]
    assert answer.cost.iteration_s == pytest.approx(best[1], rel=1e-12)
