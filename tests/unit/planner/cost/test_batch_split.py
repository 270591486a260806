"""Sharing: exact, by speed, within memory, and the work of the last spread evenly."""

from __future__ import annotations

from planner.cost.batch_split import Lane, share


def test_shares_are_exact_and_follow_speed():
    fast, slow = Lane(2, 1.0, 1.0, 99), Lane(2, 3.0, 3.0, 99)
    assert share(16, [fast, slow]) == (6, 2)
    assert share(16, [fast, fast]) == (4, 4)
    assert share(15, [fast, slow]) is None
    assert share(15, [fast, Lane(1, 1.0, 1.0, 99)]) is not None


def test_memory_limits_a_share():
    assert share(16, [Lane(2, 1.0, 1.0, 2), Lane(2, 9.0, 9.0, 99)]) == (2, 6)
    assert share(16, [Lane(2, 1.0, 1.0, 2)]) is None
    assert share(16, []) is None


def test_a_large_batch_is_shared_to_the_sample_and_no_replica_waits_for_another():
    fast, slow = Lane(2, 1.0, 3.0, 9999), Lane(1, 1.0, 3.0, 9999)
    shares = share(16385, [fast] * 3 + [slow] * 5)
    assert sum(m * b for m, b in zip(shares, (2, 2, 2, 1, 1, 1, 1, 1), strict=True)) == 16385
    assert max(shares) - min(shares) <= 1
