"""The bound is never beaten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.bound.upper_bound import bound
from planner.cost.evaluate import cost_of
from planner.plans.plan import Plan
from planner.request import PlanAnswer
from tests.oracle.answers import committed
from tests.oracle.instances import Instance, instances

ANSWERED = [i for i in instances() if committed()[i.name]["iteration_s"] is not None]


def proven_answer(instance: Instance) -> PlanAnswer:
    """The committed best plan as an answer."""
    request, row = instance.request, committed()[instance.name]
    plan = Plan.from_json(row["plan"])
    priced = cost_of(plan, request.workload, request.composition, instance.profile)
    return PlanAnswer(
        plan=plan,
        cost=priced,
        holders_min=row["holders_min"],
        search_steps=(),
        planning_s=0.0,
        bytes_to_move=None,
        idle=(),
    )


@pytest.mark.parametrize("instance", ANSWERED, ids=lambda instance: instance.name)
def test_no_plan_beats_the_bound(instance):
    best = proven_answer(instance)
    slower = replace(best, cost=replace(best.cost, iteration_s=3 * best.cost.iteration_s))
    limit_samples_s = bound(instance.request, instance.profile, slower).bound_samples_s
    assert best.throughput_samples_s <= limit_samples_s * (1 + 1e-9)
