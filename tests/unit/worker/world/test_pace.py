"""worker/world/pace.py: real work hides behind the profile, and lateness is not made up for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.evaluate import RankTimes
from worker.world import pace as emulation
from worker.world.pace import HIDDEN_S, EmulatedPace, RealPace

TIMES = RankTimes(
    forward_s=1.0,
    backward_s=2.0,
    to_previous_s=0.25,
    to_next_s=0.5,
    sync_s=0.125,
    optimizer_s=0.0625,
    broadcast_s=0.03125,
)


class Clock:
    """Virtual time in place of the module's `time`; sleeping lets it pass."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds

    def work(self, seconds):
        """Real compute."""
        self.now += seconds


@pytest.fixture(scope="module", autouse=True)
def clock():
    time = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulation, "time", time)
        yield time


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 0.9)), max_size=20))
def test_a_device_takes_its_profiled_time_whatever_the_core_took(clock, passes):
    pace, begin = EmulatedPace(TIMES), clock.now
    pace.begin()
    for is_forward, share in passes:
        seconds = TIMES.forward_s if is_forward else TIMES.backward_s
        clock.work(share * seconds)
        (pace.forward if is_forward else pace.backward)()
    profiled = sum(TIMES.forward_s if f else TIMES.backward_s for f, _ in passes)
    assert clock.now - begin == pytest.approx(profiled)
    assert pace.arrival() == pace.due() == pytest.approx(clock.now)
    assert pace.overruns == 0


def test_a_slow_core_is_counted_and_what_follows_catches_up(clock):
    pace = EmulatedPace(TIMES)
    pace.begin()
    begin = clock.now
    clock.work(1.5)
    pace.forward()
    assert (clock.now - begin, pace.overruns) == (1.5, 1)
    pace.backward()  # due at 3.0 by the device's clock: half a second of it has passed already
    assert clock.now - begin == pytest.approx(3.0)
    assert pace.overruns == 1


def test_five_percent_more_than_the_profile_are_no_overrun(clock):
    pace = EmulatedPace(TIMES)
    pace.begin()
    clock.work(1.04)
    pace.forward()
    assert pace.overruns == 0


@pytest.mark.parametrize(("direction", "seconds"), [(1, 0.5), (-1, 0.25)])
def test_a_message_passes_from_when_both_devices_are_free(clock, direction, seconds):
    pace = EmulatedPace(TIMES)
    pace.begin()
    met_at = clock.now + 4.0
    pace.link(direction, met_at)
    assert clock.now == pace.due() == met_at + seconds


def test_a_step_ends_when_the_last_rank_has_its_gradients_and_all_are_applied(clock):
    pace = EmulatedPace(TIMES)
    pace.begin()
    last = clock.now + 3.0
    pace.synchronised(last)
    assert clock.now == last + TIMES.sync_s + TIMES.optimizer_s + TIMES.broadcast_s


def test_short_work_between_two_steps_is_hidden(clock):
    pace = EmulatedPace(TIMES)
    pace.begin()
    pace.forward()
    ended = clock.now
    clock.work(0.9 * HIDDEN_S)
    pace.begin()
    assert pace.due() == ended


def test_what_a_busy_machine_lost_between_two_steps_is_not_made_up_for(clock):
    pace = EmulatedPace(TIMES)
    pace.begin()
    pace.forward()
    clock.work(1.1 * HIDDEN_S)
    pace.begin()
    assert pace.due() == clock.now


def test_before_the_first_step_there_is_no_clock_to_tell(clock):
    pace = EmulatedPace(TIMES)
    assert pace.due() is None
    pace.begin()
    assert pace.due() == clock.now


def test_a_real_device_never_waits(clock):
    pace, begin = RealPace(), clock.now
    pace.begin()
    pace.forward()
    pace.backward()
    pace.link(1, begin + 5)
    pace.synchronised(begin + 5)
    assert clock.now == begin
    assert (pace.due(), pace.arrival(), pace.overruns) == (None, 0.0, 0)
