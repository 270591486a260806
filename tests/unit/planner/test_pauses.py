"""A pause doubles with each failure in a row, up to a limit."""

from __future__ import annotations

import pytest

from planner.pauses import doubled_s


@pytest.mark.parametrize(
    ("times", "seconds"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (10_000, 3.0)]
)
def test_a_pause_doubles_up_to_its_limit(times, seconds):
    assert doubled_s(0.5, times, 3.0) == seconds
