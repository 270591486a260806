"""worker/device/wait_limit.py: a slow peer of long ago lets no silent device live longer."""

from __future__ import annotations

from migration.transport import END_S
from worker.device.wait_limit import FIRST_S, MOST_S, WaitLimit


def test_the_first_wait_of_an_epoch_may_load_kernels():
    limit = WaitLimit()
    assert limit.seconds == FIRST_S
    limit.ended(0.1)
    assert limit.seconds == END_S


def test_it_is_twice_the_longest_wait_of_the_epoch_and_the_one_before():
    limit = WaitLimit()
    for wait_s in (1.0, 20.0, 2.0):
        limit.ended(wait_s)
    assert limit.seconds == 40.0
    for seconds in (40.0, 8.0):
        limit.begin_epoch()
        limit.ended(4.0)
        assert limit.seconds == seconds


def test_a_peer_that_was_waited_for_half_an_hour_makes_it_no_longer_than_minutes():
    limit = WaitLimit()
    limit.ended(1_800.0)
    assert limit.seconds == MOST_S
