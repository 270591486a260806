"""The status says what is seen; its times change only when its conditions do."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from heddle_operator.epochs.decide import decide
from heddle_operator.report.conditions import HolderCount, summary_of
from heddle_operator.report.status import (
    count_holders,
    deleted_status,
    refused_status,
    status_of,
    waiting_status,
)
from heddle_operator.rules.drain import Drain
from heddle_operator.state.decision import Decision
from heddle_operator.state.plan_reply import PlanKey, PlanReply
from heddle_operator.state.snapshot import Observed
from heddle_operator.telemetry.metrics import OperatorMetrics
from tests.fakes.cluster import FakeCluster
from tests.fakes.operator import FakeOperator, a_cluster, a_job, running, view_of
from tests.unit.heddle_operator.epochs.test_restoring import live_again, trained_to
from tests.unit.heddle_operator.epochs.test_suspension import suspended
from worker.checkpoint_records import BestCheckpoint
from worker.contract import Report, SaveRecord, StepRecord


def status(operator, holders=None, before=None, now="T1", **changes):
    cluster: FakeCluster = operator.cluster
    observed = dataclasses.replace(cluster.snapshot(), **changes)
    decision = decide(view_of(operator.job, observed, cluster.now))
    return status_of(
        view_of(operator.job, observed, 0.0), decision, holders, Drain(), before or {}, now, ""
    )


def condition(found, kind):
    return next(c for c in found["conditions"] if c["type"] == kind)


def test_a_running_job_shows_epoch_plan_gpus_and_nodes():
    found = status(running("a", "b"))
    assert (found["phase"], found["epoch"], found["activeGPUs"]) == ("Running", 1, 2)
    assert (found["nodes"], found["nodeCount"]) == (["a", "b"], 2)
    assert found["plan"]["summary"].startswith("1 x [demo-fast tp1 x 6]")
    assert "predictedMemoryBytes" in found["plan"]
    assert condition(found, "Running")["status"] == "True"


def test_holders_are_counted_by_piece_and_node():
    operator = running("a", "b")
    plan = operator.cluster.records.all[-1].plan
    assert count_holders(operator.job.workload.model, plan) == HolderCount(2, 0)


@pytest.mark.parametrize("before", [{}, {"progress": {"step": 7, "steps": 9}}])
def test_progress_is_kept_while_nobody_can_be_asked(before):
    decision = Decision(actions=(), phase="Recovering", message="waiting")
    found = status_of(view_of(a_job(), Observed(), 0.0), decision, None, Drain(), before, "T", "")
    assert found["progress"]["step"] == before.get("progress", {"step": 0})["step"]


def test_a_job_that_is_refused_says_so_in_its_conditions():
    found = refused_status(3, "spec.model.name: unknown", {}, "T1")
    rows = [(row["type"], row["status"], row["reason"]) for row in found["conditions"]]
    said = {"Ready": "False", "Accepted": "False", "Stalled": "True"}
    assert rows == [(kind, held, "InvalidSpec") for kind, held in said.items()]
    assert (found["phase"], found["observedGeneration"]) == ("Invalid", 3)
    assert condition(found, "Accepted")["message"] == "spec.model.name: unknown"


def test_a_refusal_keeps_the_other_conditions_and_the_phase_of_what_trains():
    before = status(running("a"))
    for trains, phase in ((False, "Invalid"), (True, "Running")):
        found = refused_status(3, "no", before, "T2", trains=trains)
        assert found["phase"] == phase
        told = ("Ready", "Accepted", "Stalled")
        others = [row for row in before["conditions"] if row["type"] not in told]
        assert found["conditions"][3:] == others
        assert condition(found, "Stalled")["status"] == str(not trains)
        assert condition(found, "Accepted")["message"] == "no"


def test_a_job_that_waits_is_neither_stalled_nor_invalid():
    refused = refused_status(3, "no", {}, "T1")
    found = waiting_status(3, "there is no llama", refused, "T2", "ConfigMapMissing")
    rows = [(row["type"], row["status"], row["reason"]) for row in found["conditions"]]
    assert rows == [("Ready", "False", "ConfigMapMissing"), ("Stalled", "False", "Settled")]
    assert found["phase"] == "Pending"


def test_a_job_on_which_the_operator_fails_keeps_its_phase_and_its_other_conditions():
    before = status(running("a"))
    found = waiting_status(3, "a defect", before, "T2", "OperatorFailed")
    assert found["phase"] == "Running"
    told = ("Ready", "Stalled")
    assert found["conditions"][2:] == [r for r in before["conditions"] if r["type"] not in told]
    assert (condition(found, "Accepted")["status"]) == "True"


def test_a_deleted_job_does_not_run_and_names_the_finalizers_that_hold_it():
    rows = [{"type": "Running", "status": "True"}, {"type": "Planned", "status": "True"}]
    found = deleted_status(3, ("a/x", "b/y"), {"phase": "Running", "conditions": rows}, "T2")
    assert found["phase"] == "Terminating"
    assert found["message"].endswith("it stays until its finalizers go: a/x, b/y")
    conditions = {row["type"]: (row["status"], row.get("reason")) for row in found["conditions"]}
    assert conditions == {
        "Ready": ("False", "JobDeleted"),
        "Running": ("False", "JobDeleted"),
        "Planned": ("True", None),
    }


def test_a_job_that_goes_on_says_what_is_wrong_with_its_spec():
    operator = running("a")
    observed, now = operator.cluster.snapshot(), operator.cluster.now
    view = view_of(operator.job, observed, now)
    found = status_of(view, decide(view), None, Drain(), {}, "T1", "not so")
    accepted = condition(found, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert (accepted["message"], found["phase"]) == ("not so", "Running")


def test_the_holders_of_the_state_are_counted_for_people():
    found = status(running("a"), HolderCount(1, 7))
    assert found["holders"] == {"minNodes": 1, "singlePieces": 7}


def test_ended_pods_hold_no_gpus():
    operator = running("a", "b")
    assert status(operator)["grantedGPUs"] == 2
    operator.cluster.kill_pod("tiny-b-0")
    assert status(operator)["grantedGPUs"] == 1


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_leaves_a_status_that_kubernetes_can_read(loss):
    """Null takes the field away, as a merge patch says."""
    operator = running("a")
    view = operator.cluster.snapshot().agents["tiny-a-0"]
    step = StepRecord(epoch=1, step=9, loss=loss, gradient_norm=loss, start_s=0.0, end_s=0.5)
    report = Report.model_validate_json(
        view.report.model_copy(update={"steps": (step,)}).model_dump_json()
    )
    seen = dataclasses.replace(view, report=report, not_finite=(step,))
    found = status(operator, agents={"tiny-a-0": seen})
    json.dumps(found, allow_nan=False)
    assert (found["progress"]["loss"], found["progress"]["stepSeconds"]) == (None, 0.5)
    assert found["progress"]["skippedSteps"] == 1
    assert condition(found, "Diverged")["status"] == "True"


def test_skipped_steps_stay_counted_when_the_agent_that_told_of_them_is_gone():
    operator = running("a")
    found = status(operator, before={"progress": {"step": 1, "steps": 9, "skippedSteps": 3}})
    assert found["progress"]["skippedSteps"] == 3


def test_gpu_types_that_differ_from_their_profile_are_told_until_they_do_no_more():
    operator = running("a", "b")
    nodes = tuple(
        dataclasses.replace(node, type_speed=0.5) for node in operator.cluster.snapshot().nodes
    )
    found = status(operator, nodes=nodes)
    assert found["typeSpeeds"] == {"demo-fast": 0.5}
    assert status(operator, before=found)["typeSpeeds"] == {"demo-fast": None}
    assert "typeSpeeds" not in status(operator)


def test_the_throughput_is_predicted_by_the_newest_speeds():
    operator = running("a", "b")
    replies = operator.cluster.snapshot().replies
    before = status(operator)["plan"]["predictedSamplesPerSecond"]
    key = PlanKey("corrected nodes", operator.cluster.records.all[-1].plan.digest)
    kept = PlanReply(plan=None, current_samples_s=before / 2)
    found = status(operator, replies={**replies, key: kept})["plan"]
    assert found["predictedSamplesPerSecond"] == pytest.approx(before / 2)
    assert "predictedMemoryBytes" in found


def test_what_other_jobs_were_dealt_is_not_usable():
    operator = running("a", "b")
    gpus = status(operator)["usableGPUs"]
    dealt = status(operator, allowed={"a": 1})["usableGPUs"]
    assert (gpus, dealt) == (2, 1)


def test_a_job_that_waits_for_gpus_dealt_to_others_says_one_number():
    job = a_job(minGPUs=2)
    operator = FakeOperator(job, a_cluster(job, "a", "b"))
    found = status(operator, allowed={"a": 1}, dealt=(("ml/other", 1),))
    assert (found["phase"], found["usableGPUs"]) == ("Pending", 1)
    assert "1 GPU is usable, minGPUs is 2 (job ml/other was dealt 1 of them)" in found["message"]


def test_gpus_above_max_gpus_are_not_usable():
    assert status(running("a", "b", "c", maxGPUs=2))["usableGPUs"] == 2


def test_a_summary_of_many_templates_is_short():
    record = running("a", "b").cluster.records.all[-1]
    many = dataclasses.replace(record.plan, templates=record.plan.templates * 40)
    words = summary_of(dataclasses.replace(record, plan=many))
    assert len(words.encode()) == 512
    assert words.endswith(" ...")


def test_a_suspended_job_holds_nothing_and_tells_its_checkpoint():
    operator = trained_to(6, "a", "b")
    before = status(operator)
    assert before["checkpoint"]["step"] == 4
    suspended(operator)
    found = status(operator, before=before)
    assert (found["phase"], found["activeGPUs"], found["grantedGPUs"]) == ("Suspended", 0, 0)
    assert (found["nodes"], found["plan"]) == ([], None)
    assert found["checkpoint"] == before["checkpoint"]  # nobody is there to tell of a newer one
    OperatorMetrics().take("ml", "tiny", found, operator.decision)


def test_a_start_from_a_checkpoint_counts_the_steps_that_are_lost():
    operator = trained_to(6, "a", "b")
    before = status(operator)
    for node in ("a", "b"):
        operator.cluster.kill_node(node)
    operator.reconcile()
    operator.cluster.add_node("c")
    live_again(operator, 1)
    found = status(operator, before=before)["checkpoint"]
    assert (found["restoredEpoch"], found["restoredStep"], found["lostSteps"]) == (2, 4, 2)
    assert status(operator, before={"checkpoint": found})["checkpoint"]["lostSteps"] == 2


def with_save(operator, **losses):
    """The agents, one of whom tells of a save."""
    observed = operator.cluster.snapshot()
    save = SaveRecord(epoch=9, step=90, rank=0, outcome="saved", ended_unix_s=1.0, **losses)
    pod, agent = next(iter(observed.agents.items()))
    report = agent.report.model_copy(update={"saves": (save,)})
    return {**observed.agents, pod: dataclasses.replace(agent, report=report)}


def test_the_best_checkpoint_is_named_and_goes_with_the_one_that_told_it():
    operator = trained_to(6, "a")
    best = BestCheckpoint(epoch=3, step=30, held_out_loss=1.23456789)
    agents = with_save(operator, held_out_loss=2.0, best=best)
    found = status(operator, agents=agents)["checkpoint"]
    assert (found["step"], found["heldOutLoss"]) == (90, 2.0)
    assert (found["bestStep"], found["bestHeldOutLoss"]) == (30, 1.234568)
    later = status(operator, before={"checkpoint": found}, agents=with_save(operator))
    keys = ("heldOutLoss", "bestStep", "bestHeldOutLoss")
    assert [later["checkpoint"][key] for key in keys] == [None] * 3  # null takes them away
