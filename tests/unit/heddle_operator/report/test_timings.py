"""The stall of a change, part by part: the parts sum to the stall, on one rank's clock."""

from __future__ import annotations

import pytest

from heddle_operator.report.timings import reconfigurations
from heddle_operator.state.snapshot import AgentView, Observed
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job, a_record, a_report
from tests.fakes.planner import fake_plan
from worker.contract import SwitchRecord

NODES = Composition((Node(name="a", gpu_type="demo-fast", gpus=1),))
PLAN = fake_plan(NODES, a_job().workload)
LAPS = {"drain": 10.1, "transfer": 10.3, "verify": 10.4, "vote": 10.5, "flip": 10.8}


def a_switch(
    slot=0, stopped_s=10.0, first_step_s=11.0, epoch=2, laps=None, sent=100, halted_s=None
):
    return SwitchRecord(
        epoch=epoch, slot=slot, pid=1, step=5, stopped_s=stopped_s, first_step_s=first_step_s,
        laps=LAPS if laps is None else laps, bytes_sent=sent, halted_s=halted_s,
    )  # fmt: skip


def changes(*switches, reason="join", adopted_s=0.0, closed_s=None, epochs=(2,)):
    report = a_report(switches=switches)
    records = tuple(
        a_record(
            PLAN,
            NODES,
            epoch,
            reason=reason,
            adopted_s=adopted_s,
            outcome="live",
            closed_s=closed_s,
        )
        for epoch in epochs
    )
    return reconfigurations(
        Observed(epochs=records, agents={"p": AgentView(pod="p", report=report)})
    )


def test_the_parts_are_the_distances_between_laps_and_sum_to_the_stall():
    (change,) = changes(a_switch())
    assert change.stall_s == pytest.approx(1.0)
    assert {name: round(part, 3) for name, part in change.parts.items() if part > 1e-9} == {
        "drain_s": 0.1, "transfer_s": 0.2, "verify_s": 0.1, "vote_s": 0.1, "flip_s": 0.5,
    }  # fmt: skip
    assert sum(change.parts.values()) == pytest.approx(change.stall_s)


def test_the_rank_that_stood_still_the_longest_speaks_and_all_bytes_count():
    (change,) = changes(a_switch(0), a_switch(1, stopped_s=9.5, sent=11))
    assert change.stall_s == pytest.approx(1.5)
    assert change.bytes_moved == 111
    assert sum(change.parts.values()) == pytest.approx(1.5)


def test_joiners_and_switches_without_a_step_yet_tell_nothing():
    assert changes(a_switch(stopped_s=None)) == ()
    assert changes(a_switch(first_step_s=None)) == ()


def test_a_lap_that_was_not_taken_is_no_time():
    (change,) = changes(a_switch(laps={"drain": 10.2}))
    assert change.parts["transfer_s"] == 0
    assert sum(change.parts.values()) == pytest.approx(1.0)


def test_the_silence_before_a_loss_was_noticed_is_in_its_stall():
    laps = {name: at_s + 10.5 for name, at_s in LAPS.items()}
    silent = a_switch(laps=laps, first_step_s=21.5, halted_s=20.0)
    (change,) = changes(silent, reason="loss", adopted_s=50.0, closed_s=51.3)
    assert change.stall_s == pytest.approx(11.5)
    parts = {name: round(change.parts[f"{name}_s"], 3) for name in ("detect", "plan", "prepare")}
    assert parts == {"detect": 10.0, "plan": 0.2, "prepare": 0.4}
    assert change.parts["drain_s"] == 0
    assert sum(change.parts.values()) == pytest.approx(change.stall_s)


def test_a_loss_in_which_the_slowest_rank_did_not_halt_is_split_by_the_operators_clock():
    laps = {**LAPS, "drain": 10.6, "transfer": 10.6, "verify": 10.6, "vote": 10.6}
    (change,) = changes(a_switch(laps=laps), reason="loss", adopted_s=50.0, closed_s=50.9)
    assert change.parts["drain_s"] == 0
    assert change.parts["prepare_s"] == pytest.approx(0.5)
    assert change.parts["detect_s"] == pytest.approx(0.1)
    assert sum(change.parts.values()) == pytest.approx(1.0)


def test_a_change_whose_record_was_pruned_is_left_out_and_the_others_come_oldest_first():
    found = changes(a_switch(epoch=4), a_switch(epoch=2), a_switch(epoch=3), epochs=(3, 4))
    assert [change.epoch for change in found] == [3, 4]
