"""GPUs above a lowered `maxGPUs` are given back, in pods of the right size."""

from __future__ import annotations

import pytest

from heddle_operator.controller.arbiter import PriorityArbiter
from heddle_operator.state.actions import RecordEvent
from tests.fakes.operator import FakeOperator, a_cluster, a_job


def running(arbiter, layout, **elastic):
    job = a_job(**elastic)
    cluster = a_cluster(job)
    for name, gpus in layout.items():
        cluster.add_node(name, gpus=gpus)
    operator = FakeOperator(job, cluster, arbiter=PriorityArbiter() if arbiter else None)
    operator.settle()
    return operator


def limit(operator, most):
    spec = operator.job.spec
    elastic = spec.elastic.model_copy(update={"max_gpus": most})
    operator.job = operator.job.model_copy(
        update={"spec": spec.model_copy(update={"elastic": elastic})}
    )


def held(operator):
    return sum(pod.gpus for pod in operator.cluster.pods.values() if pod.phase != "ended")


def used(operator):
    return operator.cluster.records.all[-1].plan.gpus


@pytest.mark.parametrize("arbiter", [False, True])
@pytest.mark.parametrize(
    ("layout", "most"),
    [
        ({"n1": 4, "n2": 4, "n3": 4}, 6),
        ({"n1": 4, "n2": 4}, 6),
        ({"n1": 4, "n2": 4}, 5),
        ({"n1": 2, "n2": 8}, 3),
        ({"n1": 4, "n2": 4, "n3": 4, "n4": 4}, 9),
    ],
)
def test_pods_hold_what_the_plan_uses_once_the_limit_is_lowered(arbiter, layout, most):
    operator = running(arbiter, layout)
    assert held(operator) == sum(layout.values())
    limit(operator, most)
    operator.settle(passes=300)
    assert (held(operator), used(operator)) == (most, most)


def test_the_job_trains_on_at_its_limit_while_a_smaller_pod_is_made_elsewhere():
    operator = running(True, {"n1": 4, "n2": 4, "n3": 4})
    limit(operator, 6)
    operator.settle(passes=300)
    sizes = [record.plan.gpus for record in operator.cluster.records.all]
    assert sizes == [12, 6, 6]
    said = operator.cluster.events["adopted-3"].message
    assert said == (
        "epoch 3 (drain): the job moves: the pods hold 8 GPUs, maxGPUs is 6: pod tiny-n2-0 is "
        "replaced"
    )
    assert operator.cluster.records.all[-1].moved_by == "PodTooLarge"


def test_a_job_that_needs_the_large_pod_keeps_it_and_says_so():
    operator = running(True, {"n1": 4}, minGPUs=2)
    limit(operator, 3)
    operator.settle(passes=100)
    assert (held(operator), used(operator)) == (4, 3)
    assert operator.decision.message == (
        "the plan is kept: it was found for these very nodes (the pods hold 4 GPUs, maxGPUs is 3)"
    )
    assert not any(isinstance(a, RecordEvent) for a in operator.decision.actions)


def test_idle_gpus_below_the_limit_stay_for_a_later_plan():
    operator = running(True, {"n1": 4, "n2": 4}, maxGPUs=8)
    limit(operator, 9)
    operator.settle()
    assert held(operator) == 8
