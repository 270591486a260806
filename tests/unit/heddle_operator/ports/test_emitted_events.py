"""Each Event once, and few of one reason, whatever happens to pods of others."""

from __future__ import annotations

from heddle_operator.ports.emitted_events import BURST, PAUSE_S, EmittedEvents
from heddle_operator.state.actions import RecordEvent


def kept(number):
    return RecordEvent(f"kept-{number}", "PlanKept", "the plan is kept")


def test_an_event_is_told_once():
    events = EmittedEvents()
    assert events.add(kept(0), 0.0)
    assert not events.add(kept(0), 1000.0)


def test_after_a_burst_a_reason_is_told_once_a_pause_and_others_are_not_held_up():
    events = EmittedEvents()
    told = [events.add(kept(number), 0.1 * number) for number in range(3 * BURST)]
    assert sum(told) == BURST
    assert events.add(RecordEvent("failed", "Failed", "it has failed"), 6.0)
    last = kept(3 * BURST - 1)
    assert not events.add(last, 6.0)
    assert events.add(last, 6.0 + PAUSE_S), "it is told later if it still holds"
    assert not events.add(kept(1000), 6.0 + PAUSE_S)
