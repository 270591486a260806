"""A rank's computing time is that of whole steps of one epoch; one slow step changes nothing."""

from __future__ import annotations

import math

import pytest

from worker.agent.compute_times import STEPS, ComputeTimes


def times(epoch, *seconds):
    found = ComputeTimes()
    for one in seconds:
        found.add(epoch, one)
    return found


def test_the_median_is_told_once_enough_steps_are_measured():
    assert times(1, *[2.0] * (STEPS - 1)).median_s(1) is None
    assert times(1, *[2.0] * (STEPS - 1), 50.0).median_s(1) == 2.0


def test_only_the_newest_steps_count():
    assert times(1, *[9.0] * STEPS, *[1.0] * STEPS).median_s(1) == 1.0


def test_another_epoch_begins_anew():
    found = times(1, *[1.0] * STEPS)
    assert found.median_s(2) is None
    found.add(2, 3.0)
    assert (found.median_s(1), found.median_s(2)) == (None, None)


@pytest.mark.parametrize("odd", [None, 0.0, -1.0, math.nan, math.inf, "1"])
def test_what_is_no_time_is_not_counted(odd):
    assert times(1, *[1.0] * (STEPS - 1), odd).median_s(1) is None
