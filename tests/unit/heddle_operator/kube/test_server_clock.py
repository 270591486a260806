"""The server's clock is known within a second by any answer, and better by several."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from heddle_operator.kube.server_clock import ServerClock


def heard(clock, server_s, sent_s, received_s):
    clock.heard(formatdate(server_s, usegmt=True), sent_s, received_s)


def test_one_answer_tells_it_within_half_a_second_and_its_journey():
    clock = ServerClock()
    heard(clock, 1_000_000.9, 10.0, 10.2)
    assert clock.offset_s == pytest.approx(1_000_000.9 - 10.1, abs=0.6)


def test_answers_at_different_parts_of_a_second_narrow_it():
    clock = ServerClock()
    for number in range(50):
        at_s = 10 + number * 0.77
        heard(clock, 1_000_000.3 + at_s, at_s, at_s + 0.01)
    assert clock.offset_s == pytest.approx(1_000_000.3, abs=0.05)


def test_a_server_whose_clock_was_set_is_believed():
    clock = ServerClock()
    heard(clock, 1_000_000, 10.0, 10.0)
    heard(clock, 1_003_600, 11.0, 11.0)
    assert clock.offset_s == pytest.approx(1_003_600 - 11, abs=0.6)


@pytest.mark.parametrize("odd", ["", "yesterday", "\x00"])
def test_an_odd_date_is_ignored(odd):
    clock = ServerClock()
    heard(clock, 1_000_000, 10.0, 10.0)
    before = clock.offset_s
    clock.heard(odd, 20.0, 20.0)
    assert clock.offset_s == before
