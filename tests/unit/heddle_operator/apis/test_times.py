"""Times are read in one way, wherever they stand."""

from __future__ import annotations

import time

import pytest

from heddle_operator.apis.times import wall_s, wall_s_if_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:01:00+01:00", 60.0),
        ("1970-01-01T00:01:00.250000Z", 60.25),
        ("1970-01-01T00:01:00", 60.0),
    ],
)
def test_a_time_without_a_zone_is_utc_wherever_the_operator_runs(text, seconds, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert wall_s(text) == wall_s_if_time(text) == seconds
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("value", ["soon", "", None, 7, {}])
def test_what_is_no_time_is_none(value):
    assert wall_s_if_time(value) is None


def test_a_text_that_must_be_a_time_is_refused():
    with pytest.raises(ValueError, match="soon"):
        wall_s("soon")
