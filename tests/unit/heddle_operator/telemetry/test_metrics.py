"""What Prometheus is told of jobs, and that nothing of a job outlives it."""

from __future__ import annotations

import math

import pytest

from heddle_operator.state.actions import AdoptPlan, CloseEpoch, RecordEvent
from heddle_operator.state.decision import Decision
from heddle_operator.telemetry.metrics import OperatorMetrics
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan

NODES = Composition((Node(name="a", gpu_type="demo-fast", gpus=1),))
ADOPT = AdoptPlan(
    epoch=2, plan=fake_plan(NODES, a_job().workload), reason="join", composition=NODES
)
STATUS = {
    "epoch": 2, "activeGPUs": 4, "usableGPUs": 5, "grantedGPUs": 6,
    "progress": {"step": 7, "loss": 2.5}, "holders": {"minNodes": 1},
    "plan": {"digest": "abc", "predictedMemoryBytes": 7_000_000},
    "lastReconfiguration": {"epoch": 2, "stallSeconds": 0.3},
}  # fmt: skip


def told(*decisions, status=STATUS, job="tiny"):
    metrics = OperatorMetrics()
    metrics.lead()
    for decision in decisions:
        metrics.take("ns", job, status, decision)
    return metrics


def lines(metrics):
    return [line for line in metrics.text().decode().splitlines() if 'job="tiny"' in line]


def value(metrics, name, **labels):
    return metrics.jobs.get_sample_value(name, {"namespace": "ns", "job": "tiny", **labels})


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("heddle_job_epoch", 2),
        ("heddle_job_active_gpus", 4),
        ("heddle_job_usable_gpus", 5),
        ("heddle_job_granted_gpus", 6),
        ("heddle_job_step", 7),
        ("heddle_job_loss", 2.5),
        ("heddle_job_holders_min", 1),
        ("heddle_job_predicted_memory_bytes", 7_000_000),
        ("heddle_reconfiguration_seconds_sum", 0.3),
    ],
)
def test_the_numbers_of_the_status_are_series(name, wanted):
    assert value(told(Decision(actions=(), phase="Running", message="")), name) == wanted


def test_a_job_without_a_plan_has_no_numbers_of_one():
    metrics = told(Decision(actions=(), phase="Running", message=""))
    left = STATUS | {"activeGPUs": 0, "plan": None, "holders": None}
    metrics.take("ns", "tiny", left, Decision(actions=(), phase="Suspended", message=""))
    assert value(metrics, "heddle_job_active_gpus") == 0
    for name in ("heddle_job_holders_min", "heddle_job_predicted_memory_bytes"):
        assert math.isnan(value(metrics, name))


def test_a_job_has_one_phase_at_a_time():
    metrics = told(
        Decision(actions=(), phase="Preparing", message=""),
        Decision(actions=(), phase="Running", message=""),
    )
    assert value(metrics, "heddle_job_phase", phase="Running") == 1
    assert value(metrics, "heddle_job_phase", phase="Preparing") is None


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (ADOPT, "join"),
        (CloseEpoch(epoch=2, outcome="aborted"), "aborted"),
        (RecordEvent("k", "PlanKept", "kept"), "kept"),
        (RecordEvent("k", "PlanRecommended", "do"), "recommended"),
    ],
)
def test_every_decision_about_a_plan_is_counted_by_its_reason(action, reason):
    metrics = told(Decision(actions=(action,), phase="Running", message=""))
    assert value(metrics, "heddle_decisions_total", reason=reason) == 1


def test_a_decision_that_is_made_again_and_again_counts_once():
    kept = Decision(actions=(RecordEvent("k", "PlanKept", "kept"),), phase="Running", message="")
    assert value(told(kept, kept, kept), "heddle_decisions_total", reason="kept") == 1


def test_a_stall_is_observed_once_however_often_it_is_reported():
    running = Decision(actions=(), phase="Running", message="")
    metrics = told(running, running)
    assert value(metrics, "heddle_reconfiguration_seconds_count") == 1


def test_a_job_that_is_gone_leaves_no_series_behind():
    metrics = told(Decision(actions=(ADOPT,), phase="Running", message=""))
    assert lines(metrics)
    metrics.forget("ns", "tiny")
    metrics.forget("ns", "tiny")
    assert lines(metrics) == []


def test_a_job_that_was_never_told_of_can_be_forgotten():
    OperatorMetrics().forget("ns", "unknown")


def test_a_loss_that_is_not_finite_is_not_the_last_finite_one():
    odd = {**STATUS, "progress": {"step": 8, "loss": None}}
    metrics = told(Decision(actions=(), phase="Running", message=""))
    metrics.take("ns", "tiny", odd, Decision(actions=(), phase="Running", message=""))
    assert math.isnan(value(metrics, "heddle_job_loss"))


def test_years_of_decisions_are_counted_and_not_kept():
    events = [RecordEvent(f"kept-{number}", "PlanKept", "x") for number in range(5000)]
    metrics = told(*(Decision(actions=(event,), phase="Running", message="") for event in events))
    assert value(metrics, "heddle_decisions_total", reason="kept") == 5000
    assert len(metrics._seen["ns", "tiny"].counted) == 1024
    metrics.forget("ns", "tiny")
    assert not lines(metrics)


def test_turns_decisions_and_searches_are_observed_by_their_seconds():
    metrics = OperatorMetrics()
    for blocked_s in (0.15, 0.3):
        metrics.turn(blocked_s, 0.02)
    metrics.decided(0.4)
    metrics.planned(3.0)
    found = metrics.registry.get_sample_value
    assert found("heddle_loop_blocked_seconds_sum") == pytest.approx(0.45)
    assert found("heddle_loop_blocked_seconds_bucket", {"le": "0.2"}) == 1
    assert found("heddle_loop_cpu_seconds_bucket", {"le": "0.05"}) == 2
    assert found("heddle_decision_seconds_sum") == 0.4
    assert found("heddle_planning_seconds_sum") == 3.0


def test_the_version_and_the_commit_of_the_operator_are_a_series():
    metrics = OperatorMetrics("1.2.3", "abc")
    labels = {"version": "1.2.3", "commit": "abc"}
    assert metrics.registry.get_sample_value("heddle_build_info", labels) == 1


def test_a_gpu_type_has_a_speed_as_long_as_it_differs_from_its_profile():
    metrics, running = OperatorMetrics(), Decision(actions=(), phase="Running", message="")
    name, labels = "heddle_job_type_speed", {"gpu_type": "h100"}
    metrics.take("ns", "tiny", {**STATUS, "typeSpeeds": {"h100": 0.5}}, running)
    assert value(metrics, name, **labels) == 0.5
    metrics.take("ns", "tiny", {**STATUS, "typeSpeeds": {"h100": None}}, running)
    assert value(metrics, name, **labels) is None
    metrics.take("ns", "tiny", {**STATUS, "typeSpeeds": {"h100": 2.0}}, running)
    metrics.forget("ns", "tiny")
    assert not lines(metrics)


def test_of_jobs_the_leader_alone_tells():
    metrics = told(Decision(actions=(), phase="Running", message=""))
    assert lines(metrics)
    metrics.rest()
    assert not lines(metrics)
    assert "heddle_operator_is_leader 0.0" in metrics.text().decode()


def test_a_refused_job_has_its_phase_alone():
    metrics = told(Decision(actions=(), phase="Pending", message=""))
    metrics.phase("ns", "tiny", "Invalid")
    assert value(metrics, "heddle_job_phase", phase="Invalid") == 1
    assert value(metrics, "heddle_job_phase", phase="Pending") is None
