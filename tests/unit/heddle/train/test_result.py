"""heddle/train/result.py: every number of a run, under the names that were promised."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from heddle.train.result import build_result
from planner.cost.evaluate import cost_of
from planner.cost.simulation import simulated_seconds
from tests.unit.heddle.train.recorded import (
    FACTS,
    FIRST,
    JOB,
    PROFILE,
    RESUMED_S,
    SECOND,
    STEP_S,
    STOPPED_S,
    THREE,
    TWO,
    recorded,
    report,
    steps,
    switch,
)
from worker.contract import LAPS

PARTS = [f"{name}_s" for name in ("detect", "agree", "plan", "prepare", *LAPS)]


def result(recorder=None, **facts):
    return build_result(JOB, recorder or recorded(), PROFILE, replace(FACTS, **facts))


def test_the_promised_names_are_all_there():
    found = result()
    assert set(found) >= {
        "epochs",
        "refusals",
        "processes",
        "losses",
        "reference_losses",
        "max_loss_difference",
        "model",
        "checkpoint_reads",
        "orphan_processes",
        "engine",
    }
    first, second = found["epochs"]
    assert (
        set(first)
        == set(second)
        == {
            "epoch",
            "reason",
            "plan",
            "composition",
            "gpus",
            "holders_min",
            "first_step",
            "last_step",
            "step_s",
            "predicted_step_s",
            "formula_step_s",
            "measured",
            "predicted_memory_bytes",
            "reconfiguration",
        }
    )
    assert set(second["reconfiguration"]) == {
        "stall_s",
        "parts",
        "from_kill_s",
        "restart_s",
        "bytes_moved",
        "bytes_minimum",
        "bytes_spread",
        "steps_lost",
        "state_digest_before",
        "state_digest_after",
    }
    (template,) = first["plan"]["templates"]
    assert {"replicas", "micro_batch", "stages"} <= set(template)
    assert {"gpu_type", "tp", "layers"} <= set(template["stages"][0])
    assert set(found["refusals"][0]) == {"composition", "gain_percent", "reason"}


def test_a_result_is_json():
    assert json.loads(json.dumps(result())) == result()


def test_an_epoch_that_never_trained_is_left_out():
    epochs = result()["epochs"]
    assert [(e["epoch"], e["reason"], e["first_step"], e["last_step"]) for e in epochs] == [
        (1, "start", 0, 4),
        (2, "join", 5, 9),
    ]


def test_the_parts_sum_to_the_stall():
    change = result()["epochs"][1]["reconfiguration"]
    assert change["stall_s"] == pytest.approx(RESUMED_S - STOPPED_S)
    assert list(change["parts"]) == PARTS
    assert sum(change["parts"].values()) == pytest.approx(change["stall_s"])
    assert change["parts"]["vote_s"] == pytest.approx(0.02)


def test_the_first_epoch_was_no_reconfiguration():
    assert result()["epochs"][0]["reconfiguration"] is None


@pytest.mark.parametrize(("index", "plan", "nodes"), [(0, FIRST, TWO), (1, SECOND, THREE)])
def test_measured_and_predicted_seconds_stand_side_by_side(index, plan, nodes):
    epoch, priced = result()["epochs"][index], cost_of(plan, JOB.workload, nodes, PROFILE)
    assert epoch["step_s"] == pytest.approx(STEP_S)
    assert epoch["predicted_step_s"] == simulated_seconds(priced)
    assert epoch["formula_step_s"] == priced.iteration_s
    assert epoch["gpus"] == len(nodes.nodes) + (index == 1)
    assert epoch["holders_min"] == 1 + index


def test_bytes_and_digests_are_those_of_all_ranks_together():
    change = result()["epochs"][1]["reconfiguration"]
    assert (change["bytes_moved"], change["bytes_minimum"]) == (5000, 5000)
    assert change["state_digest_before"] == change["state_digest_after"] == "d" * 16
    assert (change["steps_lost"], change["restart_s"]) == (0, 7.5)


def test_ranks_that_disagree_about_the_state_leave_no_digest():
    recorder = recorded()
    recorder.take_report(report("demo-fast-2-0", switches=(switch(0, STOPPED_S, 0, "e" * 16),)))
    change = result(recorder)["epochs"][1]["reconfiguration"]
    assert change["state_digest_before"] is None
    assert change["state_digest_after"] is None


def test_steps_that_the_new_epoch_trained_again_are_lost():
    recorder = recorded()
    recorder.take_report(report("demo-fast-1-0", *steps(1, 2, 100.5)))  # epoch 1 went on to step 6
    assert result(recorder)["epochs"][1]["reconfiguration"]["steps_lost"] == 2


def test_bytes_that_no_peer_sent_came_from_elsewhere():
    assert result()["checkpoint_reads"] == 0
    recorder = recorded()
    came = switch(0, None, 3000).model_copy(update={"bytes_received": 2999})
    recorder.take_report(report("demo-fast-3-0", switches=(came,)))
    assert result(recorder)["checkpoint_reads"] == 1


def test_the_worst_loss_counts():
    reference = [*FACTS.reference_losses]
    reference[7] += 0.5
    found = result(reference_losses=tuple(reference))
    assert found["max_loss_difference"] == pytest.approx(0.5)
    assert len(found["losses"]) == len(found["reference_losses"]) == 10


def test_a_run_that_was_not_compared_has_no_difference():
    assert result(reference_losses=())["max_loss_difference"] is None


def test_processes_are_told_by_epoch_and_rank():
    found = [(row["epoch"], [r["rank"] for r in row["ranks"]]) for row in result()["processes"]]
    assert found == [(1, [0]), (2, [0, 2, 3])]
    pids = [row["ranks"][0]["pid"] for row in result()["processes"]]
    assert pids[0] == pids[1]


def test_emulated_seconds_are_called_emulated():
    found = result()
    assert found["emulated"] is True
    assert found["profile_origin"] == PROFILE.origin == "modelled"
