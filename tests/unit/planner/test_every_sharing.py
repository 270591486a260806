"""Sharings sum to the batch exactly, and none ends earlier."""

from __future__ import annotations

import math
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from planner.every_sharing import Runner, best_sharing

SIZES, MOST = st.sampled_from([1, 2, 3]), st.sampled_from([1, 3, 9])
RUNNERS = st.builds(Runner, SIZES, st.floats(0.1, 1), st.floats(1, 2), MOST)


@given(st.integers(1, 14), st.lists(RUNNERS, min_size=1, max_size=3), st.floats(1, 9))
def test_no_sharing_ends_earlier(global_batch, runners, limit_s):
    ranges = [range(1, min(r.most, global_batch // r.micro_batch) + 1) for r in runners]
    ends = [
        max(runner.seconds(m) for runner, m in zip(runners, counts, strict=True))
        for counts in product(*ranges)
        if sum(r.micro_batch * m for r, m in zip(runners, counts, strict=True)) == global_batch
    ]
    best = min(ends, default=math.inf)
    shares = best_sharing(global_batch, runners, limit_s)
    assert (shares is not None) == (best < limit_s)
    if shares is not None:
        trained = sum(r.micro_batch * m for r, m in zip(runners, shares, strict=True))
        assert trained == global_batch
        assert all(1 <= m <= r.most for r, m in zip(runners, shares, strict=True))
        end_s = max(r.seconds(m) for r, m in zip(runners, shares, strict=True))
        assert math.isclose(end_s, best, rel_tol=1e-9)


def test_a_replica_that_cannot_start_in_time_shares_nothing():
    assert best_sharing(2, [Runner(1, 0.5, 1.0, 9), Runner(1, 0.5, 5.0, 9)], 4.0) is None
