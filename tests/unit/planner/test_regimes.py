"""Regimes are all plans, however they are split."""

from __future__ import annotations

import math

from planner.regimes import Regime, regimes


def test_every_number_of_pipelines_is_in_one_regime():
    found = regimes(2.0, sums_count=True)
    for pipelines in range(1, 40):
        assert sum(one.fewest <= pipelines <= one.most for one in found) == 1


def test_halves_leave_no_sum_out():
    for regime in regimes(2.0, sums_count=True)[1:]:
        low, high = regime.halves()
        assert (low.sums_s[0], high.sums_s[-1]) == (0.0, math.inf)
        assert low.sums_s[-1] == high.sums_s[0]


def test_sums_that_are_not_known_to_take_time_are_not_told_apart():
    assert regimes(2.0, sums_count=False) == (Regime(1, math.inf),)
    assert Regime(1, math.inf).halves() == ()
