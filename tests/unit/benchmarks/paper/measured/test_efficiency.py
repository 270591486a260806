"""Search efficiency: best-so-far curves."""

from __future__ import annotations

import pytest

from benchmarks.paper.measured.efficiency import measure, median_reached, needed, reached, text


def test_curves_are_read_at_a_number_of_plans():
    curve = [[16.0, 1.0], [70.0, 3.0]]
    assert reached(curve, 15) == 0.0
    assert reached(curve, 69) == 1.0
    assert median_reached([curve], 64) == 3.0, "a quarter beyond a budget counts"
    assert needed(curve, 2.0) == 70.0
    assert needed(curve, 4.0) is None


@pytest.mark.slow
def test_curves_never_fall():
    found = measure((16, 64), 2, (0,))
    for curves in found.values():
        for curve in curves:
            assert curve
            assert [rate for _, rate in curve] == sorted(rate for _, rate in curve)
    assert "MCTS reaches" in text(found)
