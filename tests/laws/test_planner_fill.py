"""Fill: layers sum to L, shares to B, and nothing that brute force finds is better."""

from __future__ import annotations

from itertools import combinations, pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from planner.cost.batch_split import Lane, share
from planner.cost.memory import StageSlot, fits
from planner.search.fill import FillTable, pareto_splits
from tests.builders import MODEL, demo_profile, nodes, workload

SECONDS = st.floats(0.01, 1)


def all_splits(depth: int, layers: int):
    for cuts in combinations(range(1, layers), depth - 1):
        edges = (0, *cuts, layers)
        yield tuple(b - a for a, b in pairwise(edges))


@given(
    st.integers(1, 4).flatmap(
        lambda depth: st.tuples(
            *(
                st.lists(row, min_size=depth, max_size=depth)
                for row in (SECONDS, st.floats(0, 1), st.integers(0, 8))
            )
        )
    ),
    st.integers(4, 8),
    st.integers(1, 20),
)
def test_for_every_m_the_best_split_is_kept(case, num_layers, micro_batches):
    block_s, other_s, caps = case

    def iteration(times):
        return (micro_batches - 1) * max(times) + sum(times)

    best = min(
        (
            iteration([o + a * n for o, a, n in zip(other_s, block_s, layers, strict=True)])
            for layers in all_splits(len(block_s), num_layers)
            if all(n <= cap for n, cap in zip(layers, caps, strict=True))
        ),
        default=None,
    )
    kept = pareto_splits(block_s, other_s, caps, num_layers)
    assert all(sum(layers) == num_layers and min(layers) >= 1 for layers, _, _ in kept)
    found = min(((micro_batches - 1) * tau + total for _, tau, total in kept), default=None)
    assert (found is None) == (best is None)
    assert best is None or abs(found - best) < 1e-9


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


OPTIONS = st.sampled_from([("demo-fast", 1), ("demo-fast", 2), ("demo-slow", 1)])


@given(st.lists(OPTIONS, min_size=1, max_size=4).map(tuple), st.integers(1, 40))
def test_every_filling_holds_the_model_and_fits_in_memory(structure, global_batch):
    table = FillTable(workload(global_batch), nodes("fast-0:4 slow-0:4"), demo_profile())
    for filling in table.fillings(structure):
        assert sum(filling.layers) == MODEL.layers
        for index, (layers, (kind, tp)) in enumerate(zip(filling.layers, structure, strict=True)):
            slot = StageSlot(
                kind, tp, filling.lane.micro_batch, filling.lane.most, len(structure), index
            )
            assert fits(workload(global_batch), demo_profile(), slot, layers)


@given(
    st.lists(
        st.tuples(st.lists(OPTIONS, min_size=2, max_size=3).map(tuple), st.integers(1, 3)),
        min_size=1,
        max_size=3,
        unique_by=lambda row: row[0],
    ).map(tuple),
    st.integers(1, 40),
)
def test_no_fill_beats_the_least_seconds(counts, global_batch):
    table = FillTable(workload(global_batch), nodes("fast-0:4 slow-0:4"), demo_profile())
    chosen = table.choose(counts)
    if chosen is None:
        return
    lanes = [f.lane for f, (_, n) in zip(chosen, counts, strict=True) for _ in range(n)]
    shares = share(global_batch, lanes)
    end = max(lane.seconds(n) for lane, n in zip(lanes, shares, strict=True))
    assert end >= table.least_seconds(counts) - 1e-9
