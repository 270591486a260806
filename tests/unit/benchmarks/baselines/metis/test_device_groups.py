"""Metis' device groups against all lists of powers of two."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from benchmarks.baselines.metis.device_groups import multisets, orders


def all_multisets(gpus, stages, least):
    powers = [1 << k for k in range(gpus.bit_length())]
    rows = product(powers, repeat=stages)
    return {tuple(sorted(row)) for row in rows if sum(row) == gpus and min(row) >= least}


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("gpus", [4, 6, 7, 16])
def test_they_are_all_powers_of_two_of_that_sum(gpus, stages):
    found = list(multisets(gpus, stages, 0.0))
    assert len(found) == len(set(found))
    assert set(found) == all_multisets(gpus, stages, 1)


def test_variance_leaves_out_groups_far_below_their_share():
    """16 GPUs and a variance of 1: no group is smaller than an even one."""
    assert list(multisets(16, 2, 1.0)) == [(8, 8)]
    assert list(multisets(16, 3, 1.0)) == []
    assert list(multisets(16, 3, 0.5)) == [(4, 4, 8)]


@pytest.mark.parametrize("groups", [(1,), (1, 1, 2), (1, 2, 4), (2, 2, 4, 4)])
def test_few_groups_come_in_every_order_once(groups):
    found = list(orders(groups, 10))
    assert len(found) == len(set(found))
    assert set(found) == set(permutations(groups))


def test_of_many_groups_the_smallest_stay_in_pairs():
    found = set(orders((1, 1, 2, 4), 3))
    assert found == {(*a, *b, *c) for a, b, c in permutations([(1, 1), (2,), (4,)])}
