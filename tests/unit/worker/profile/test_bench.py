"""worker/profile/bench.py: of several times the smallest counts, once a second one confirms it."""

from __future__ import annotations

import pytest

from worker.device.device import CPU
from worker.profile.bench import MOST, Bench, timing_of


class Clock:
    """Whose work takes these seconds, in turn."""

    def __init__(self, *seconds):
        self.now_s, self.left = 0.0, list(seconds)

    def work(self):
        self.now_s += self.left.pop(0) if len(self.left) > 1 else self.left[0]


def test_the_smallest_time_counts_and_the_spread_says_how_far_the_others_were():
    assert timing_of([2.0, 1.0, 1.5]) == (1.0, 0.5)


def test_repeats_go_on_until_a_second_time_is_as_small():
    clock = Clock(9.0, 1.0, 4.0, 3.0, 1.02, 7.0)
    bench = Bench(CPU, 2, lambda: clock.now_s)
    assert bench.seconds(clock.work) == 1.0
    assert clock.left == [7.0]
    assert bench.spread == pytest.approx(1.01)


def test_what_never_agrees_ends_all_the_same():
    clock = Clock(*(float(2**k) for k in range(20, 0, -1)))
    Bench(CPU, 2, lambda: clock.now_s).seconds(clock.work)
    assert len(clock.left) == 20 - 1 - 2 * MOST
