"""The parts of a stall sum to it, whatever the ranks recorded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.contract import LAPS, SwitchRecord
from worker.stall import PARTS, LossTimes, measure_stall


def switch(slot, stopped_s, first_step_s, *ends_s):
    laps = dict(zip(LAPS, ends_s, strict=False))
    return SwitchRecord(
        epoch=2, slot=slot, pid=slot, step=9, laps=laps,
        stopped_s=stopped_s, first_step_s=first_step_s,
    )  # fmt: skip


STAYS = switch(0, 10.0, 10.5, 10.1, 10.2, 10.25, 10.3, 10.5)
JOINS = switch(1, None, 10.6, 10.0, 10.22, 10.26, 10.3, 10.55)
LEAVES = switch(2, 10.05, None, 10.1, 10.15, 10.2, 10.3)


def test_the_rank_that_stood_still_the_longest_speaks_whatever_its_clock_shows():
    """Another machine's clock is 1,000 s ahead; its rank stood still for a shorter time."""
    other = switch(3, 1010.1, 1010.5, 1010.2, 1010.3, 1010.4, 1010.4, 1010.5)
    for records in ([STAYS, JOINS, LEAVES], [STAYS, JOINS, LEAVES, other]):
        stall = measure_stall(records)
        assert stall.stall_s == pytest.approx(0.5)
        assert list(stall.parts) == [f"{name}_s" for name in PARTS]
        expected = [0, 0, 0, 0, 0.1, 0.1, 0.05, 0.05, 0.2]
        assert list(stall.parts.values()) == pytest.approx(expected)


def test_a_loss_counts_from_the_survivors_last_step_and_its_wait_is_split():
    loss = LossTimes(until_live_s=1.2, agree_s=0.1)
    ends_s = (13.0, 13.1, 13.15, 13.2, 13.4)
    survivor = switch(0, 10.0, 13.5, *ends_s).model_copy(update={"halted_s": 12.1})
    stall = measure_stall([survivor, switch(1, None, 13.6, *ends_s)], loss)
    assert stall.stall_s == pytest.approx(3.5)
    names = ("detect_s", "agree_s", "plan_s", "prepare_s", "drain_s")
    assert [stall.parts[name] for name in names] == pytest.approx([2.1, 0.1, 0.1, 0.7, 0.0])


@pytest.mark.parametrize("records", [[], [LEAVES], [JOINS]], ids=["none", "unfinished", "start"])
def test_there_is_no_stall_before_the_first_new_step_or_without_an_old_one(records):
    assert measure_stall(records) is None


def test_where_all_who_trained_have_left_a_joiner_tells_what_followed_the_vote():
    """Its clock is 500 s ahead."""
    later = switch(3, None, 510.7, 510.0, 510.22, 510.26, 510.3, 510.6)
    stall = measure_stall([LEAVES, JOINS, later])
    assert stall.stall_s == pytest.approx(0.25 + 0.4)
    expected = [0, 0, 0, 0, 0.05, 0.05, 0.05, 0.1, 0.4]
    assert list(stall.parts.values()) == pytest.approx(expected)
    no_vote = LEAVES.model_copy(update={"laps": {}})
    assert measure_stall([no_vote, JOINS]) is None


times = st.floats(0, 100, allow_nan=False)


@given(
    records=st.lists(st.tuples(times, times, st.lists(times, max_size=5)), min_size=1, max_size=5),
    loss=st.none() | st.tuples(times, times),
)
def test_parts_sum_to_the_stall_even_if_clocks_lie(records, loss):
    switches = [switch(i, min(a, b), max(a, b), *ends) for i, (a, b, ends) in enumerate(records)]
    seen = LossTimes(*loss) if loss else None
    stall = measure_stall(switches, seen)
    assert sum(stall.parts.values()) == pytest.approx(stall.stall_s)
    assert all(part >= 0 for part in stall.parts.values())
