"""Fill: splits, and the table of fillings of a search."""

from __future__ import annotations

import math

import pytest

from planner.search.fill import FillTable, pareto_splits
from tests.builders import demo_profile, nodes, workload

TP1, TP2, SLOW = ("demo-fast", 1), ("demo-fast", 2), ("demo-slow", 1)


def table(text: str = "fast-0:4 slow-0:2", batch: int = 32) -> FillTable:
    return FillTable(workload(batch), nodes(text), demo_profile())


def test_layers_follow_speed():
    (layers, tau, total), *_ = pareto_splits([1.0, 2.0], [0.0, 0.0], [6, 6], 6)[::-1]
    assert (layers, tau, total) == ((4, 2), 4.0, 8.0)


def test_both_ends_of_the_trade_are_kept():
    kept = pareto_splits([1.0, 1.5], [0.0, 0.0], [6, 6], 6)
    assert [layers for layers, _, _ in kept] == [(5, 1), (4, 2)]


def test_a_cap_moves_layers_to_another_stage_or_ends_it():
    assert pareto_splits([1.0, 2.0], [0.0, 0.0], [3, 6], 6) == [((3, 3), 6.0, 9.0)]
    assert pareto_splits([1.0, 2.0], [0.0, 0.0], [3, 2], 6) == []
    assert pareto_splits([1.0, 2.0], [0.0, 0.0], [6, 6], 1) == []


def test_a_whole_replica_on_one_demo_gpu_has_no_filling():
    assert table().fillings((TP1,)) == ()
    assert table().least_seconds((((TP1,), 1),)) == math.inf
    assert table().choose((((TP1,), 1),)) is None


def test_few_micro_batches_allow_larger_ones():
    """With M = 1 a stage keeps one micro-batch only, so a size fits that would not with more."""
    lanes = [filling.lane for filling in table().fillings((TP1, TP1))]
    most = {size: max(lane.most for lane in lanes if lane.micro_batch == size) for size in (2, 4)}
    assert most[2] == 16
    assert most[4] < 8


def test_each_template_takes_the_filling_that_suits_the_whole_plan():
    chosen = table().choose((((TP1, TP1), 1), ((TP2,), 1)))
    assert chosen is not None
    sizes = {filling.lane.micro_batch for filling in chosen}
    assert 32 % min(sizes) == 0


def test_frontier_grows_with_time():
    times, samples = table().frontier((TP1, SLOW))
    assert times == sorted(times)
    assert samples == sorted(samples)
    assert table().samples_within((TP1, SLOW), times[0]) == samples[0]
    assert table().samples_within((TP1, SLOW), times[0] * 0.99) == 0
    assert max(samples) == pytest.approx(32)
