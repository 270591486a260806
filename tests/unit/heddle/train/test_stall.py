"""The parts of a stall sum to it, whatever the ranks recorded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.train.stall import PARTS, LossTimes, measure_stall, stall_line
from worker.contract import LAPS, SwitchRecord


def switch(slot, stopped_s, first_step_s, *ends_s):
    laps = dict(zip(LAPS, ends_s, strict=False))
    return SwitchRecord(
        epoch=2, slot=slot, pid=slot, step=9, laps=laps,
        stopped_s=stopped_s, first_step_s=first_step_s,
    )  # fmt: skip


STAYS = switch(0, 10.0, 10.5, 10.1, 10.2, 10.25, 10.3, 10.5)
JOINS = switch(1, None, 10.6, 10.0, 10.22, 10.26, 10.3, 10.55)
LEAVES = switch(2, 10.05, None, 10.1, 10.15, 10.2, 10.3)


def test_a_part_ends_when_the_last_rank_ends_it():
    stall = measure_stall([STAYS, JOINS, LEAVES])
    assert stall.stall_s == pytest.approx(0.55)
    assert list(stall.parts) == [f"{name}_s" for name in PARTS]
    expected = [0, 0, 0, 0, 0.05, 0.12, 0.04, 0.04, 0.3]
    assert list(stall.parts.values()) == pytest.approx(expected)


def test_a_loss_counts_from_the_survivors_last_step_and_the_kill_stands_beside_it():
    loss = LossTimes(killed_s=10.2, halted_s=12.2, agreed_s=12.2, adopted_s=12.3, prepared_s=12.9)
    ends_s = (13.0, 13.1, 13.15, 13.2, 13.4)
    survivor = switch(0, 10.0, 13.5, *ends_s).model_copy(update={"halted_s": 12.1})
    stall = measure_stall([survivor, switch(1, None, 13.6, *ends_s)], loss)
    assert stall.stall_s == pytest.approx(3.6)
    assert stall.from_kill_s == pytest.approx(3.4)
    names = ("detect_s", "agree_s", "plan_s", "prepare_s", "drain_s")
    assert [stall.parts[name] for name in names] == pytest.approx([2.1, 0.1, 0.1, 0.6, 0.1])


@pytest.mark.parametrize("records", [[], [LEAVES], [JOINS]], ids=["none", "unfinished", "start"])
def test_there_is_no_stall_before_the_first_new_step_or_without_an_old_one(records):
    assert measure_stall(records) is None


times = st.floats(0, 100, allow_nan=False)


@given(
    records=st.lists(st.tuples(times, times, st.lists(times, max_size=5)), min_size=1, max_size=5),
    loss=st.none() | st.tuples(times, times, times, times, times),
)
def test_parts_sum_to_the_stall_even_if_clocks_lie(records, loss):
    switches = [switch(i, min(a, b), max(a, b), *ends) for i, (a, b, ends) in enumerate(records)]
    seen = LossTimes(*loss) if loss else None
    stall = measure_stall(switches, seen)
    assert sum(stall.parts.values()) == pytest.approx(stall.stall_s)
    assert all(part >= 0 for part in stall.parts.values())


def test_a_stall_line_leaves_out_parts_that_cost_nothing():
    line = stall_line("join", 0.1, {"detect_s": 0.0, "transfer_s": 0.1}, 7.0)
    assert line.startswith("join: stall 100 ms = transfer 100; a cold restart takes 7.0 s")
    line = stall_line("loss", 0.5, {"detect_s": 0.5}, None, 0.4)
    assert line == "loss: stall 500 ms = detect 500, 400 ms from the kill"
