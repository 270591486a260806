"""The order of samples is a bijection, looks random, and is the same on every machine."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.data.order import Permutation


def order(size: int, seed: int = 1, stream: int = 0, data_epoch: int = 0) -> list[int]:
    permutation = Permutation(size, seed, stream, data_epoch)
    return [permutation(place) for place in range(size)]


@given(st.integers(-(2**70), 2**70), st.integers(0, 9), st.integers(0, 5), st.integers(1, 300))
def test_every_number_comes_once(seed, stream, data_epoch, size):
    assert sorted(order(size, seed, stream, data_epoch)) == list(range(size))


@given(st.integers(0, 99), st.integers(1, 2**62), st.data())
def test_no_two_places_of_a_large_order_meet(seed, size, data):
    places = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=40))
    permutation = Permutation(size, seed, 0, 0)
    found = {permutation(place) for place in places}
    assert len(found) == len(places)
    assert all(0 <= number < size for number in found)


def test_the_order_differs_between_seeds_streams_and_passes():
    keys = itertools.product((1, 2), (0, 1), (0, 1))
    assert len({tuple(order(50, *key)) for key in keys}) == 8


def test_the_order_is_the_same_on_every_machine_and_version():
    """Written down once; if it changes, the loss curves of all jobs change."""
    assert order(8) == [0, 2, 6, 4, 5, 7, 3, 1]
    assert Permutation(10**12, 7, 3, 2)(123_456_789) == 884_913_822_590


def chi_square(counts: Counter[int], kinds: int) -> float:
    expected = sum(counts.values()) / kinds
    return sum((counts[kind] - expected) ** 2 / expected for kind in range(kinds))


@pytest.mark.parametrize("size", [2, 3, 5, 8, 17])
def test_each_number_is_as_likely_at_each_place(size):
    """Over seeds; the bound is six standard deviations above the mean of chi-square."""
    seeds = 1000
    orders = [order(size, seed) for seed in range(seeds)]
    limit = (size - 1) + 6 * (2 * (size - 1)) ** 0.5
    for place in range(size):
        assert chi_square(Counter(found[place] for found in orders), size) < limit


def test_neighbours_are_as_far_apart_as_in_a_random_order():
    """n / 3 on average for numbers below n, with deviation n / 18**0.5."""
    size = 4096
    found = order(size)
    distances = [abs(a - b) for a, b in itertools.pairwise(found)]
    mean = sum(distances) / len(distances)
    assert abs(mean - size / 3) < 6 * size / 18**0.5 / len(distances) ** 0.5


def test_rises_are_as_many_as_in_a_random_order():
    """(n - 1) / 2 on average, with variance (n + 1) / 12."""
    size = 4096
    rises = sum(a < b for a, b in itertools.pairwise(order(size)))
    assert abs(rises - (size - 1) / 2) < 6 * ((size + 1) / 12) ** 0.5


def test_few_numbers_stay_where_they_are():
    """One on average, whatever the size: Poisson."""
    stay = sum(
        number == place for seed in range(50) for place, number in enumerate(order(64, seed))
    )
    assert 50 - 6 * 50**0.5 < stay < 50 + 6 * 50**0.5


def test_an_order_of_many_samples_needs_no_time_to_start():
    start_s = time.process_time()
    Permutation(10**15, 1, 0, 0)(10**14)
    assert time.process_time() - start_s < 1.0, "a list of them would take days"
