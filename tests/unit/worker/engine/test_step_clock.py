"""worker/engine/step_clock.py: parts are counted apart and start anew at each step."""

from __future__ import annotations

import pytest

from worker.engine import step_clock
from worker.engine.step_clock import StepClock, computing_s, peak_memory_bytes


@pytest.fixture
def clock(monkeypatch):
    """A clock of which every look takes a second."""
    now = iter(range(100))
    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: float(next(now)))
    return StepClock()


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


def test_what_a_rank_waited_is_none_of_its_computing(clock):
    for part in ("forward", "waiting", "backward", "waiting"):
        with clock.part(part):
            pass
    assert computing_s(clock.take()) == 2.0


def test_a_process_has_held_some_memory():
    assert peak_memory_bytes() > 10 << 20
