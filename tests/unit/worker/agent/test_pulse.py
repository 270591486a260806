"""worker/agent/pulse.py: who is silent, who is stuck, and who is only slow."""

from __future__ import annotations

import pytest

from worker.agent.pulse import Pulse


def lived(seconds, *, progress=lambda s: 0, waiting=False, trains=True):
    """A pulse that beat once a second."""
    pulse = Pulse()
    for second in range(seconds):
        pulse.beat(progress(second), "forward", waiting, trains)
        pulse.pass_time(1.0)
    return pulse


def test_a_rank_that_never_beat_is_not_judged():
    pulse = Pulse()
    pulse.pass_time(1000.0)
    assert not pulse.is_silent(10.0)
    assert not pulse.is_stuck(30.0, 0.0, True)


def test_one_that_has_beaten_is_lost_after_the_peer_timeout_and_not_before():
    pulse = lived(5)
    pulse.pass_time(9.0)
    assert not pulse.is_silent(10.0)
    pulse.pass_time(0.1)
    assert pulse.is_silent(10.0)
    pulse.beat(0, "forward", False, True)
    assert not pulse.is_silent(10.0)


def test_silence_alone_is_not_being_stuck():
    pulse = lived(5)
    pulse.pass_time(1000.0)
    assert not pulse.is_stuck(30.0, 0.0, True)


@pytest.mark.parametrize(("step_s", "limit_s"), [(0.0, 30), (1.0, 30), (20.0, 200)])
def test_it_is_stuck_after_ten_steps_and_half_a_minute_at_least(step_s, limit_s):
    assert not lived(limit_s + 1).is_stuck(30.0, step_s, True)
    assert lived(limit_s + 2).is_stuck(30.0, step_s, True)


def test_the_first_step_of_a_process_may_take_ten_times_as_long():
    assert not lived(301).is_stuck(30.0, 0.0, False)
    assert lived(302).is_stuck(30.0, 0.0, False)


@pytest.mark.parametrize(
    "alive",
    [{"progress": lambda s: s // 29}, {"waiting": True}, {"trains": False}],
    ids=["slow", "waits for peers", "does not train"],
)
def test_it_is_not_stuck_while_it_is(alive):
    assert not lived(500, **alive).is_stuck(30.0, 0.0, True)
