"""The bound is never beaten, and it is seldom missing."""

from __future__ import annotations

import pytest

from planner.bound import bound
from planner.cost.evaluate import price
from planner.plans.plan import Plan
from planner.request import PlanAnswer
from tests.oracle.answers import committed
from tests.oracle.instances import Instance, instances

MOST_MISSING = 0.05
ANSWERED = [i for i in instances() if committed()[i.name]["iteration_s"] is not None]


def proven_answer(instance: Instance) -> PlanAnswer:
    """The committed best plan as an answer."""
    request, row = instance.request, committed()[instance.name]
    plan = Plan.from_json(row["plan"])
    priced = price(plan, request.workload, request.composition, instance.profile)
    return PlanAnswer(plan, priced, row["holders_min"], (), 0.0, None, ())


def bound_of(instance: Instance) -> float | None:
    return bound(instance.request, instance.profile, proven_answer(instance)).bound_samples_s


@pytest.mark.parametrize("instance", ANSWERED, ids=lambda instance: instance.name)
def test_no_plan_beats_the_bound(instance):
    limit_samples_s = bound_of(instance)
    if limit_samples_s is not None:
        best_samples_s = committed()[instance.name]["throughput_samples_s"]
        assert best_samples_s <= limit_samples_s * (1 + 1e-9)


def test_the_bound_is_seldom_missing():
    missing = [instance.name for instance in ANSWERED if bound_of(instance) is None]
    assert len(missing) <= MOST_MISSING * len(ANSWERED), missing
