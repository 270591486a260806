"""1F1B event by event, against the closed form of an even pipeline."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.baselines.espresso.schedule import play

pytestmark = pytest.mark.slow  # is compiled


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 3, 9])
def test_an_even_pipeline_has_the_bubble_of_its_depth(depth, micro_batches):
    ends = np.zeros(depth)
    one = np.ones(depth)
    total = play(one, 2 * one, 0 * one, micro_batches, ends)
    assert total == pytest.approx(3 * (micro_batches + depth - 1))
    assert ends[0] == total, "the first stage ends last"


def test_a_message_delays_both_passes():
    ends = np.zeros(2)
    total = play(np.ones(2), np.ones(2), np.array([0.5, 0.0]), 1, ends)
    assert total == pytest.approx(4 + 2 * 0.5)
