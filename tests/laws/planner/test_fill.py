"""The batch is shared to the exact sample, and no sharing ends earlier."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from planner.cost.batch_split import Lane, share

SECONDS = st.floats(0.01, 1)


LANES = st.builds(
    Lane, st.sampled_from([1, 2, 4, 8]), SECONDS, st.floats(1, 2), st.sampled_from([1, 3, 32])
)


@given(st.integers(1, 24), st.lists(LANES, min_size=1, max_size=3))
def test_shares_sum_to_the_batch_and_end_as_early_as_any_do(global_batch, lanes):
    ranges = [range(1, min(lane.most, global_batch // lane.micro_batch) + 1) for lane in lanes]
    ends = [
        max(lane.seconds(count) for lane, count in zip(lanes, counts, strict=True))
        for counts in product(*ranges)
        if sum(lane.micro_batch * n for lane, n in zip(lanes, counts, strict=True)) == global_batch
    ]
    shares = share(global_batch, lanes)
    assert (shares is None) == (not ends)
    if shares is not None:
        assert min(shares) >= 1
        assert all(n <= lane.most for lane, n in zip(lanes, shares, strict=True))
        trained = sum(lane.micro_batch * n for lane, n in zip(lanes, shares, strict=True))
        assert trained == global_batch
        end = max(lane.seconds(n) for lane, n in zip(lanes, shares, strict=True))
        assert end <= min(ends) + 1e-9
