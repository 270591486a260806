"""Floors are below every plan, and exact where nothing is left to choose."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.cost import price
from planner.every_fill import EveryFill
from planner.every_placement import every_placement, placed_stages
from planner.every_sharing import best_sharing
from planner.floors import Floors
from planner.plan import FilledTemplate, Plan
from tests.oracle.instances import instances

CASES = [i for i in instances() if i.request.workload.recompute == "none"]
DENSE = [i for i in CASES if not i.is_moe][:12]
WITH_EXPERTS = [i for i in CASES if i.is_moe][:8]


def roomy(instance):
    """The instance with memory for everything."""
    types = {n: replace(kind, memory_bytes=10**12) for n, kind in instance.profile.types.items()}
    return replace(instance, profile=replace(instance.profile, types=types))


def floors_of(instance):
    request, profile = instance.request, instance.profile
    sizes = profile.micro_batches("type-a")
    fills = EveryFill(request.workload, profile, sizes, allow_ep=True)
    return Floors(request.workload, profile, request.composition, fills, sizes)


@pytest.mark.parametrize("instance", [*DENSE, *WITH_EXPERTS], ids=lambda i: i.name)
def test_no_plan_is_below_the_floor_of_its_bag_or_its_replicas(instance):
    instance = roomy(instance)
    request, profile = instance.request, instance.profile
    workload, floors, priced = request.workload, floors_of(instance), 0
    for degrees, replicas in (((1, 1), 1), ((1,), 2), ((1, 1), 2), ((2,), 2)):
        bag = ((tuple(("type-a", tp) for tp in degrees), replicas),)
        for where in every_placement(bag, request.composition, ordered=True):
            rows = floors.placed(bag, where, math.inf)[0]
            for row in rows[:: max(1, len(rows) // 6)]:
                shares = best_sharing(workload.global_batch, row.runners, math.inf)
                if shares is None:
                    continue
                template = FilledTemplate(row.stages, row.runners[0].micro_batch, shares)
                plan = Plan((template,), placed_stages((template,), where, request.composition))
                answer = price(plan, workload, request.composition, profile)
                for runner, m, replica in zip(row.runners, shares, answer.replicas, strict=True):
                    assert runner.seconds(m) == pytest.approx(replica.pipeline_s, rel=1e-9)
                assert row.optimizer_s == pytest.approx(answer.optimizer_s, rel=1e-9)
                assert row.sync_s <= answer.sync_s * (1 + 1e-9)
                assert floors.of_bag(bag) <= answer.iteration_s * (1 + 1e-9)
                priced += 1
    assert priced


def test_a_bag_without_a_fill_is_never_done():
    instance = DENSE[0]
    tight = {
        n: replace(k, memory_bytes=k.reserve_bytes + 1) for n, k in instance.profile.types.items()
    }
    floors = floors_of(replace(instance, profile=replace(instance.profile, types=tight)))
    assert floors.of_bag((((("type-a", 1),), 1),)) == math.inf
    assert floors.alone_s((("type-a", 1),), 1) == math.inf


def test_a_limit_that_no_replica_keeps_leaves_nothing():
    instance = roomy(DENSE[1])
    bag = (((("type-a", 1),), 1),)
    where = next(every_placement(bag, instance.request.composition, ordered=False))
    assert floors_of(instance).placed(bag, where, 1e-9) == [[]]
