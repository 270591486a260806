"""worker/agent/heartbeat.py: who is silent, who is stuck, and who is only slow."""

from __future__ import annotations

import pytest

from worker.agent.heartbeat import Heartbeat
from worker.contract import READING, READING_S


def lived(seconds, *, progress=lambda s: 0, waiting=False, trains=True, part="forward"):
    """A rank that beats once a second."""
    heartbeat = Heartbeat()
    for second in range(seconds):
        heartbeat.beat(progress(second), part, waiting=waiting, trains=trains)
        heartbeat.pass_time(1.0)
    return heartbeat


def test_a_rank_that_never_beat_is_not_judged():
    heartbeat = Heartbeat()
    heartbeat.pass_time(1000.0)
    assert not heartbeat.is_silent(10.0)
    assert not heartbeat.is_stuck(30.0, 0.0, True)


def test_one_that_has_beaten_is_lost_after_the_peer_timeout_and_not_before():
    heartbeat = lived(5)
    heartbeat.pass_time(9.0)
    assert not heartbeat.is_silent(10.0)
    heartbeat.pass_time(0.1)
    assert heartbeat.is_silent(10.0)
    heartbeat.beat(0, "forward", waiting=False, trains=True)
    assert not heartbeat.is_silent(10.0)


def test_silence_alone_is_not_being_stuck():
    heartbeat = lived(5)
    heartbeat.pass_time(1000.0)
    assert not heartbeat.is_stuck(30.0, 0.0, True)


@pytest.mark.parametrize(("step_s", "limit_s"), [(0.0, 30), (1.0, 30), (20.0, 200)])
def test_it_is_stuck_after_ten_steps_and_half_a_minute_at_least(step_s, limit_s):
    assert not lived(limit_s + 1).is_stuck(30.0, step_s, True)
    assert lived(limit_s + 2).is_stuck(30.0, step_s, True)


def test_the_first_step_of_a_process_may_take_ten_times_as_long():
    assert not lived(301).is_stuck(30.0, 0.0, False)
    assert lived(302).is_stuck(30.0, 0.0, False)


def test_one_that_reads_data_is_given_a_file_servers_failover():
    limit_s = int(READING_S)
    assert not lived(limit_s + 1, part=READING).is_stuck(30.0, 0.0, True)
    assert lived(limit_s + 2, part=READING).is_stuck(30.0, 0.0, True)
    assert lived(20 * limit_s + 2, part=READING).is_stuck(30.0, 0.0, False)


@pytest.mark.parametrize(
    "alive",
    [{"progress": lambda s: s // 29}, {"waiting": True}, {"trains": False}],
    ids=["slow", "waits for peers", "does not train"],
)
def test_it_is_not_stuck_while_it_is(alive):
    assert not lived(500, **alive).is_stuck(30.0, 0.0, True)
