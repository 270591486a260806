"""Columns are worth what their fillings are, and their plans are priced like any other."""

from __future__ import annotations

import numpy as np
import pytest

from planner.estimator.build_tables import pricing_of
from planner.estimator.unplaced_plan import new_plan
from planner.estimator.workspace import new_workspace
from planner.search.column_generation.pool import add_column, uses_of, worth_of
from tests.builders import demo_profile, nodes, workload


@pytest.fixture
def tables():
    pricing = pricing_of(workload(), nodes("fast-0:2 slow-0:2"), demo_profile())
    assert pricing is not None
    return pricing.tables


@pytest.fixture
def pool(tables):
    pool = new_plan(slots=8)
    for options, blocks in (((0, 0), (3, 3)), ((2, 2), (2, 4)), ((1,), (6,))):
        add(tables, pool, options, blocks)
    return pool


def add(t, pool, options, blocks) -> bool:
    plan, depth = new_plan(), len(options)
    plan.depth[0], plan.replicas[0] = depth, 1
    plan.options[0, :depth], plan.blocks[0, 0, :depth] = options, blocks
    return add_column(t, pool, plan, 0, 2, new_workspace(t))


def test_a_column_is_added_once_and_its_blocks_are_among_its_fillings(tables, pool):
    assert pool.number[0] == 3
    assert not add(tables, pool, (2, 2), (2, 4))
    assert add(tables, pool, (2, 2), (5, 1)), "other blocks are another filling"
    assert pool.number[0] == 3
    held = {tuple(row[:2].tolist()) for row in pool.blocks[1, : pool.filling_count[1, 0]]}
    assert {(2, 4), (5, 1)} <= held


def test_whole_micro_batches_are_worth_no_more_than_parts(tables, pool):
    real, whole = np.zeros(3), np.zeros(3)
    horizon_s = 3.3 * pool.sum_s[0, 0]
    worth_of(tables, pool, horizon_s, real, whole)
    assert (whole <= real).all()
    assert (real <= whole + tables.sizes.max()).all()
    best = max(
        tables.sizes[pool.size[0, f]]
        * min(1 + (horizon_s - pool.sum_s[0, f]) / pool.tau_s[0, f], pool.most[0, f])
        for f in range(pool.filling_count[0, 0])
        if pool.sum_s[0, f] <= horizon_s
    )
    assert real[0] == pytest.approx(best)
    worth_of(tables, pool, 0.0, real, whole)
    assert real.tolist() == [0.0] * 3, "nothing is trained in no time"


def test_smaller_groups_count_what_larger_ones_take(tables, pool):
    uses = np.zeros((len(tables.option_tp), 3))
    uses_of(tables, pool, uses)
    assert uses[:, 0].tolist() == [2, 0, 0, 0]
    assert uses[:, 2].tolist() == [2, 2, 0, 0]
