"""Columns are worth what their fillings are, and their plans are priced like any other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.estimator.build_tables import pricing_of
from planner.estimator.unplaced_plan import new_fillings, new_plan
from planner.estimator.workspace import new_workspace
from planner.search.column_generation.gradient_limit import gradient_limit, is_within
from planner.search.column_generation.pool import (
    add_column,
    new_pool,
    take_fillings,
    uses_of,
    worth_of,
)
from tests.builders import demo_profile, nodes, workload


@pytest.fixture
def tables():
    pricing = pricing_of(workload(), nodes("fast-0:2 slow-0:2"), demo_profile())
    assert pricing is not None
    return pricing.tables


@pytest.fixture
def pool(tables):
    pool = new_pool(8)
    for options, blocks in (((0, 0), (3, 3)), ((2, 2), (2, 4)), ((1,), (6,))):
        add(tables, pool, options, blocks)
    return pool


def add(t, pool, options, blocks) -> bool:
    wide = np.zeros(32, np.int64), np.zeros(32, np.int64)
    for array, values in zip(wide, (options, blocks), strict=True):
        array[: len(values)] = values
    work, fillings = new_workspace(t), new_fillings()
    return add_column(t, pool, len(options), *wide, 1, 2, work, fillings)


def no_longer_than(t, most_s):
    return gradient_limit(t, 1e-9, most_s)


def test_a_column_is_added_once_and_its_blocks_are_among_its_fillings(tables, pool):
    assert pool.number[0] == 3
    assert not add(tables, pool, (2, 2), (2, 4))
    assert add(tables, pool, (2, 2), (5, 1)), "other blocks are another filling"
    assert pool.number[0] == 3
    held = {tuple(row[:2].tolist()) for row in pool.blocks[1, : pool.fillings[1]]}
    assert {(2, 4), (5, 1)} <= held


def test_whole_micro_batches_are_worth_no_more_than_parts(tables, pool):
    real, whole = np.zeros(3), np.zeros(3)
    horizon_s = 3.3 * pool.sum_s[0, 0]
    worth_of(tables, pool, horizon_s, no_longer_than(tables, math.inf), real, whole)
    assert (whole <= real).all()
    assert (real <= whole + tables.sizes.max()).all()
    best = max(
        tables.sizes[pool.size[0, f]]
        * min(1 + (horizon_s - pool.sum_s[0, f]) / pool.tau_s[0, f], pool.most[0, f])
        for f in range(pool.fillings[0])
        if pool.sum_s[0, f] <= horizon_s
    )
    assert real[0] == pytest.approx(best)
    worth_of(tables, pool, horizon_s, no_longer_than(tables, 0.0), real, whole)
    assert real.tolist() == [0.0] * 3, "nothing sums its gradients in no time"


def test_smaller_groups_count_what_larger_ones_take(tables, pool):
    uses = np.zeros((len(tables.option_tp), 3))
    uses_of(tables, pool, uses)
    assert uses[:, 0].tolist() == [2, 0, 0, 0]
    assert uses[:, 2].tolist() == [2, 2, 0, 0]


def test_a_slot_takes_the_fillings_of_a_column_within_the_limit(tables, pool):
    plan = new_plan()
    assert take_fillings(pool, 1, no_longer_than(tables, math.inf), plan, 0)
    count = int(pool.fillings[1])
    assert plan.filling_count[0, 0] == count
    assert plan.tau_s[0, :count].tolist() == pool.tau_s[1, :count].tolist()
    assert not take_fillings(pool, 1, no_longer_than(tables, 0.0), plan, 0)


def test_gradients_are_summed_stage_by_stage_embedding_and_head_included(tables):
    limit = no_longer_than(tables, math.inf)
    options, blocks = np.array([0, 2]), np.array([4, 2])
    one = 4 * limit.block_s[0] + limit.ends_s[0, 0]
    other = 2 * limit.block_s[2] + limit.ends_s[2, 1]
    assert one > other > 0
    assert is_within(limit._replace(most_s=one), 2, options, blocks)
    assert not is_within(limit._replace(most_s=0.5 * (one + other)), 2, options, blocks)
