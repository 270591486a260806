"""worker/engine/step_clock.py: parts are counted apart and start anew at each step."""

from __future__ import annotations

import pytest

from worker.device.device import CpuDevice
from worker.engine.step_clock import StepClock, computing_s


@pytest.fixture
def clock():
    """A clock whose device passes a mark each second."""
    now = iter(range(100))

    class Ticking(CpuDevice):
        def mark(self):
            return float(next(now))

    return StepClock(Ticking())


def test_each_part_is_counted_apart_and_taken_once(clock):
    for part in ("forward", "backward", "forward"):
        with clock.part(part):
            pass
    assert clock.take() == (2.0, 1.0, 0.0)
    assert clock.take() == (0.0, 0.0, 0.0)


def test_a_part_that_fails_is_counted_too(clock):
    with pytest.raises(ValueError, match="broken"), clock.part("waiting"):
        raise ValueError("broken")
    assert clock.take() == (0.0, 0.0, 1.0)


def test_what_is_forgotten_is_not_read_from_the_device():
    class Unpassed(CpuDevice):
        def seconds(self, start, end):
            raise RuntimeError("both events must be completed")

    clock = StepClock(Unpassed())
    with clock.part("forward"):
        pass
    clock.forget()
    assert clock.take() == (0.0, 0.0, 0.0)


def test_what_a_rank_waited_is_none_of_its_computing(clock):
    for part in ("forward", "waiting", "backward", "waiting"):
        with clock.part(part):
            pass
    assert computing_s(clock.take()) == 2.0
