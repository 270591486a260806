"""What policies reach while they learn."""

from __future__ import annotations

import pytest

from benchmarks.paper.measured.learning import FLAT, LEARNING, of_trainings, text, train


def test_the_share_of_plans_that_cannot_run_is_said():
    stored = of_trainings({FLAT: [([[16.0, 1.0]], 0.25)], LEARNING: [([[16.0, 2.0]], 0.0)]})
    assert stored["curves"] == {FLAT: [[[16.0, 1.0]]], LEARNING: [[[16.0, 2.0]]]}
    assert "25% (flat-RL)" in text(stored)


@pytest.mark.slow
def test_curves_never_fall_and_count_what_cannot_run():
    points, invalid = train(FLAT, 0, (64, 300))
    assert [rate for _, rate in points] == sorted(rate for _, rate in points)
    assert 0 < points[0][0] <= 64
    assert points[1][0] >= 300
    assert 0 < invalid <= 1
