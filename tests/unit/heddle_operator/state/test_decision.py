"""The earliest of several times to look again."""

from __future__ import annotations

import pytest

from heddle_operator.state.decision import sooner


@pytest.mark.parametrize(
    ("times_s", "earliest_s"),
    [((), None), ((None, None), None), ((3.0, None, 2.0), 2.0), ((5.0,), 5.0), ((-1.0, 4.0), 0.0)],
)
def test_the_earliest_counts_and_none_is_never(times_s, earliest_s):
    assert sooner(*times_s) == earliest_s
