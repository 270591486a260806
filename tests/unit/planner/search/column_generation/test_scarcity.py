"""The price of GPUs beyond the room."""

from __future__ import annotations

import numpy as np
import pytest

from planner.search.column_generation.scarcity import climb

ROOM = np.array([4, 4])


def test_the_price_of_what_is_asked_too_much_takes_all_that_is_gained():
    scarcity = np.zeros(2)
    climb(scarcity, np.array([6.0, 1.0]), ROOM, 10.0)
    assert scarcity.tolist() == [5.0, 0.0]
    assert 10.0 - scarcity[0] * (6.0 - 4.0) == 0.0  # Polyak: the same column gains nothing now


def test_the_price_of_what_is_left_falls_but_not_below_nothing():
    scarcity = np.array([1.0, 9.0])
    climb(scarcity, np.array([0.0, 0.0]), ROOM, 16.0)
    assert scarcity.tolist() == pytest.approx([0.0, 7.0])


def test_bundles_share_the_room():
    scarcity = np.zeros(2)
    climb(scarcity, np.array([3.0, 1.0]), ROOM / 2, 4.0)
    assert scarcity.tolist() == [4.0, 0.0]


def test_where_nothing_is_asked_too_much_prices_stay():
    scarcity = np.zeros(2)
    climb(scarcity, np.array([4.0, 0.0]), ROOM, 3.0)
    assert scarcity.tolist() == [0.0, 0.0]
