"""The page of the growing cluster on kubelets tells of plans, steps, breaks and the A5000."""

from __future__ import annotations

import pytest

from benchmarks.evaluation.references import expanded
from benchmarks.paper.cells import cell_of
from benchmarks.paper.further_claims import drops_a5000_on_kubelets
from benchmarks.paper.measured.growth_on_kubelets import Joined, breaks_s, run_of, text, watched
from benchmarks.paper.measured.stand_in import MODEL, SLOWDOWN
from benchmarks.paper.store import read_cell
from benchmarks.paper.tables import HEDDLE
from heddle_operator.state.epoch_record import EpochRecord
from tests.e2e.kubernetes.curve import Curve
from worker.contract import StepRecord

STEP_S = 10.0


def a_record(epoch, cell, **state):
    plan = expanded(read_cell(cell)[HEDDLE]["counted"]["plan"])
    fields = {"outcome": "live", "step_s": 1.0, "reason": "join" if epoch > 1 else "start", **state}
    return EpochRecord(
        epoch=epoch, plan=plan, composition=cell.listed.composition, adopted_s=0.0, **fields
    )


def a_run(*, joins=((100.0, 3), (140.0, 11)), steps=((1, 5), (3, 2))):
    """Two sizes: five steps of the first plan, a break of 4 s, two steps of the third one."""
    grown = [Joined(cell_of(MODEL, f"grow-{gpus}"), at_s) for at_s, gpus in joins]
    first, second = (one.cell for one in grown)
    records = [
        a_record(1, first),
        a_record(2, second, outcome="aborted"),
        a_record(3, second),
    ]
    curve, now_s, step = Curve(), 110.0, 0
    for epoch, count in steps:
        rows = []
        for _ in range(count):
            row = StepRecord(
                epoch=epoch, step=step, loss=1, gradient_norm=1, start_s=now_s, end_s=now_s + STEP_S
            )
            rows.append(row)
            now_s, step = now_s + STEP_S, step + 1
        curve.add("pod", rows)
        now_s += 4.0
    return run_of(grown, records, curve, now_s - 4.0)


def test_a_size_has_the_plan_that_it_ended_with_and_the_time_to_its_first_step():
    run = a_run()
    assert [(size["gpus"], size["first_step_s"]) for size in run["sizes"]] == [
        (3, 10.0),
        (11, 24.0),
    ]
    assert sum(run["sizes"][1]["by_type"].values()) == run["sizes"][1]["used"]
    assert run["joined_s"] == [0.0, 30.0, 74.0]
    assert run["given_up"] == 1
    assert breaks_s(run) == [[], [4.0]]


def test_a_plan_that_stays_has_no_first_step():
    run = a_run(steps=((1, 7),))
    assert run["sizes"][1]["first_step_s"] is None
    assert "the plan stayed" in text({"trained": {HEDDLE: run | {"ended": ""}}}, 1.0)


@pytest.mark.parametrize("used", [0, 4])
def test_the_page_says_whether_the_a5000_is_used(used):
    run = a_run()
    run["sizes"][1]["by_type"] = {"a5000": used, "a6000": 4}
    found = {"trained": {HEDDLE: run | {"ended": ""}}}
    assert watched(run["sizes"][0]) == "none there"
    assert watched(run["sizes"][1]) == f"{used} of 4"
    assert f"| {used} of 4 |" in text(found, 1.0)


def test_the_claim_is_told_at_19_gpus_alone():
    run = a_run() | {"ended": ""}
    found = {"growth-kubelets": {"trained": {HEDDLE: run}}}
    assert drops_a5000_on_kubelets(found).holds is None
    run["sizes"][-1] |= {"gpus": 19, "by_type": {"a5000": 4, "a6000": 12}}
    assert drops_a5000_on_kubelets(found).holds is False
    run["sizes"][-1]["by_type"] = {"a6000": 12}
    assert drops_a5000_on_kubelets(found).holds is True


def test_a_run_that_ended_early_says_so():
    found = {"trained": {HEDDLE: a_run() | {"ended": "11 GPUs took longer than 600 s"}}}
    assert "ended after 11 GPUs: 11 GPUs took longer" in text(found, 1.0)
    assert f"{SLOWDOWN:g} times the modelled time" in text(found, 1.0)


def test_earlier_runs_stand_beside_this_one():
    found = {"trained": {HEDDLE: a_run() | {"ended": ""}}}
    assert "Other runs" not in text(found, 1.0)
    found["other_runs"] = [{"load": 30.2, "used": [3, 8]}]
    assert "- 3, 8 GPUs, at a load of 30.2" in text(found, 1.0)
