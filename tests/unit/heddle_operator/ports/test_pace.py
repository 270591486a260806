"""What is rare waits for nothing; what comes again and again is slowed down."""

from __future__ import annotations

import pytest

from heddle_operator.ports.pace import Pace


def test_a_burst_waits_for_nothing_and_what_follows_comes_by_the_pause():
    pace = Pace(0.1, 3)
    assert [pace.wait_s(5.0) for _ in range(3)] == pytest.approx([0.0, 0.0, 0.0])
    assert pace.wait_s(5.0) == pytest.approx(0.1)
    assert pace.wait_s(5.1) == pytest.approx(0.1)


def test_what_was_not_used_is_saved_up_to_a_burst():
    pace = Pace(0.1, 3)
    for _ in range(4):
        pace.wait_s(5.0)
    assert [pace.wait_s(60.0) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.0, 0.1])


def test_what_costs_more_is_followed_by_a_longer_pause():
    pace = Pace(0.1, 3)
    assert pace.wait_s(5.0, 2.3) == pytest.approx(2.0)
