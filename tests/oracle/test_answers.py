"""The committed answers are what brute force says today."""

from __future__ import annotations

import pytest

from planner.cost.evaluate import cost_of
from planner.plans.plan import Plan, faults
from tests.oracle.answers import answer_of, committed
from tests.oracle.instances import COUNT, MOE, instances

COMMITTED = committed()
INSTANCES = instances()
# Every tenth in order of the time that its enumeration took, the longest left out: easy and hard.
BY_TIME = sorted(INSTANCES, key=lambda i: (COMMITTED[i.name]["enumerated_s"], i.name))
AGAIN = BY_TIME[5::10]


def test_there_are_a_hundred_instances_and_thirty_have_experts():
    assert len(INSTANCES) == len(COMMITTED) == COUNT == 100
    assert sum(instance.is_moe for instance in INSTANCES) == MOE >= 30


def test_the_instances_bind_in_many_ways():
    found = [row for row in COMMITTED.values() if row["iteration_s"] is not None]
    plans = [Plan.from_json(row["plan"]) for row in found]
    stages = [[s for t in plan.templates for s in t.stages] for plan in plans]
    requests = [instance.request for instance in INSTANCES]
    assert len(found) >= 95
    assert sum(len(plan.templates) > 1 for plan in plans) >= 20
    assert sum(any(t.replicas > 1 for t in plan.templates) for plan in plans) >= 30
    assert sum(any(len(t.stages) > 1 for t in plan.templates) for plan in plans) >= 30
    assert sum(any(s.is_tiled for s in row) for row in stages) >= 10
    assert sum(any(s.recompute != "none" for s in row) for row in stages) >= 15
    assert sum(len({s.gpu_type for s in row}) > 1 for row in stages) >= 10
    assert sum(request.min_holders > 1 for request in requests) >= 10
    assert sum(request.workload.zero for request in requests) >= 8


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda instance: instance.name)
def test_a_committed_plan_answers_its_instance_and_costs_what_it_says(instance):
    row = COMMITTED[instance.name]
    assert row["instance"] == instance.digest, (
        "the instance changed since it was answered; run python -m tests.oracle.answers"
    )
    if row["iteration_s"] is None:
        return
    plan, request = Plan.from_json(row["plan"]), instance.request
    assert plan.digest == row["digest"]
    assert not faults(plan, request.workload, request.composition)
    priced = cost_of(plan, request.workload, request.composition, instance.profile)
    assert priced.iteration_s == pytest.approx(row["iteration_s"], rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("instance", AGAIN, ids=lambda instance: instance.name)
def test_brute_force_answers_alike_again(instance):
    again, row = answer_of(instance), COMMITTED[instance.name]
    assert (again["iteration_s"], again.get("digest")) == (row["iteration_s"], row.get("digest"))
