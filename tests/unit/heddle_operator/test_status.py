"""The status says what is seen; its times change only when its conditions do."""

from __future__ import annotations

import dataclasses

import pytest

from heddle_operator.decide import decide
from heddle_operator.decision import Decision
from heddle_operator.snapshot import Observed
from heddle_operator.status import HolderCount, count_holders, refused_status, status_of
from tests.fakes.cluster import FakeCluster
from tests.fakes.operator import FakeOperator, a_cluster, a_job


def running(*nodes, **elastic):
    job = a_job(**elastic)
    operator = FakeOperator(job, a_cluster(job, *nodes))
    operator.settle()
    return operator


def status(operator, holders=None, before=None, now="T1", **changes):
    cluster: FakeCluster = operator.cluster
    observed = dataclasses.replace(cluster.snapshot(), **changes)
    decision = decide(operator.job, observed, cluster.now)
    return status_of(operator.job, observed, decision, holders, before or {}, now)


def condition(found, kind):
    return next(c for c in found["conditions"] if c["type"] == kind)


def test_a_running_job_shows_epoch_plan_gpus_and_nodes():
    found = status(running("a", "b"))
    assert (found["phase"], found["epoch"], found["activeGPUs"]) == ("Running", 1, 2)
    assert found["nodes"] == ["a", "b"]
    assert found["plan"]["summary"].startswith("1 x [demo-fast tp1 x 6]")
    assert condition(found, "Running")["status"] == "True"


def test_a_job_without_gpus_says_why():
    observed = Observed(unusable=(("n1", "is cordoned"),))
    decision = decide(a_job(), observed, 0.0)
    found = status_of(a_job(), observed, decision, None, {}, "T1")
    planned = condition(found, "Planned")
    assert (planned["status"], planned["reason"]) == ("False", "NoPlan")
    assert "0 GPUs are usable, minGPUs is 1 (n1 is cordoned)" in planned["message"]


def test_a_condition_keeps_its_time_until_it_changes():
    operator = running("a")
    first = status(operator, now="T1")
    second = status(operator, before=first, now="T2")
    assert second["conditions"] == first["conditions"]
    ended = Decision((), "Complete", "all steps are trained")
    third = status_of(operator.job, operator.cluster.snapshot(), ended, None, second, "T3")
    assert condition(third, "Complete")["lastTransitionTime"] == "T3"
    assert condition(third, "Accepted")["lastTransitionTime"] == "T1"


def test_fewer_holders_than_wanted_degrade_a_job():
    found = status(running("a", minHolders=2), HolderCount(1, 7))
    degraded = condition(found, "Degraded")
    assert degraded["status"] == "True"
    assert "minHolders is 2, 1 is reached" in degraded["message"]
    assert found["holders"] == {"minNodes": 1, "singlePieces": 7}


def test_holders_are_counted_by_piece_and_node():
    operator = running("a", "b")
    plan = operator.cluster.records.all[-1].plan
    assert count_holders(operator.job.workload.model, plan) == HolderCount(2, 0)


def test_a_pod_that_cannot_start_is_in_the_conditions_while_the_job_trains():
    operator = running("a")
    operator.cluster.add_node("b")
    for _ in range(10):
        operator.look()
        operator.cluster.answer_plans()
        if "tiny-b-0" in operator.cluster.pods:
            break
    pods = tuple(
        dataclasses.replace(pod, problem="ImagePullBackOff: x") if pod.name == "tiny-b-0" else pod
        for pod in operator.cluster.snapshot().pods
    )
    found = status(operator, pods=pods)
    assert condition(found, "Running")["status"] == "True"
    assert condition(found, "Reconfiguring")["reason"] == "PodsCannotStart"
    assert condition(found, "Degraded")["message"] == "pod tiny-b-0: ImagePullBackOff: x"


@pytest.mark.parametrize("before", [{}, {"progress": {"step": 7, "steps": 9}}])
def test_progress_is_kept_while_nobody_can_be_asked(before):
    decision = Decision((), "Recovering", "waiting")
    found = status_of(a_job(), Observed(), decision, None, before, "T")
    assert found["progress"]["step"] == before.get("progress", {"step": 0})["step"]


def test_a_job_that_is_refused_says_so_in_one_condition():
    found = refused_status(3, "spec.model.name: unknown", {}, "T1")
    (accepted,) = found["conditions"]
    assert (accepted["type"], accepted["status"]) == ("Accepted", "False")
    assert (found["phase"], found["observedGeneration"]) == ("Invalid", 3)
    assert accepted["message"] == "spec.model.name: unknown"
