"""worker/engine/learning_rate.py: up in a straight line, then flat."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.learning_rate import learning_rate

peaks = st.floats(1e-6, 1.0)


@given(peaks, st.integers(1, 1000))
def test_it_rises_by_equal_steps_and_reaches_the_peak_with_the_last_of_them(peak, warmup):
    first = learning_rate(peak, warmup, 0)
    assert first == pytest.approx(peak / warmup)
    middle = warmup // 2
    assert learning_rate(peak, warmup, middle) == pytest.approx((middle + 1) * first)
    assert learning_rate(peak, warmup, warmup - 1) == peak


@given(peaks, st.integers(0, 100), st.integers(0, 10_000))
def test_after_the_warm_up_it_stays(peak, warmup, later):
    assert learning_rate(peak, warmup, warmup + later) == peak
