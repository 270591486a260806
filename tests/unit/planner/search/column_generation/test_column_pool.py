"""Columns are worth what their fillings are, and their plans are priced like any other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.estimator.bag import new_bag, new_fillings
from planner.estimator.bench import new_bench
from planner.estimator.build_tables import pricing_of
from planner.estimator.elites import load_elite, new_elites
from planner.estimator.fill.given_blocks import keeps_to
from planner.estimator.objective import Wishes, objective, refill
from planner.search.column_generation.column_pool import (
    add_column,
    new_pool,
    price_counts,
    uses_of,
    worth_of,
)
from planner.search.column_generation.zones import zones_of
from tests.builders import demo_profile, nodes, workload

WISHES = Wishes(3, 4, 0, math.inf, math.inf)


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
    bench, fillings = new_bench(t), new_fillings()
    return add_column(t, pool, len(options), *wide, 1, 2, bench, fillings)


def everywhere(t, most_s=math.inf):
    return zones_of(t, t.layers, 0, 1e-9, 1e-9, most_s)


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
    worth_of(tables, pool, horizon_s, everywhere(tables), real, whole)
    assert (whole <= real).all()
    assert (real <= whole + tables.sizes.max()).all()
    best = max(
        tables.sizes[pool.size[0, f]]
        * min(1 + (horizon_s - pool.sum_s[0, f]) / pool.tau_s[0, f], pool.most[0, f])
        for f in range(pool.fillings[0])
        if pool.sum_s[0, f] <= horizon_s
    )
    assert real[0] == pytest.approx(best)
    worth_of(tables, pool, horizon_s, everywhere(tables, 0.0), real, whole)
    assert real.tolist() == [0.0] * 3, "nothing sums its gradients in no time"


def test_smaller_groups_count_what_larger_ones_take(tables, pool):
    uses = np.zeros((len(tables.option_tp), 3))
    uses_of(tables, pool, uses)
    assert uses[:, 0].tolist() == [2, 0, 0, 0]
    assert uses[:, 2].tolist() == [2, 2, 0, 0]


def test_plans_of_columns_are_priced_as_annealing_prices_them(tables, pool):
    t, elites, bench = tables, new_elites(), new_bench(tables)
    bag = new_bag()
    chosen, counts = np.array([0, 1]), np.array([1, 1])
    price_counts(t, WISHES, pool, chosen, counts, everywhere(t), bag, new_bag(), bench, elites)
    assert elites.number[0] > 0
    load_elite(elites, int(np.argmin(elites.value)), bag)
    for k in range(bag.number[0]):
        assert refill(t, bag, k, bench)
    assert objective(t, WISHES, bag, bench, math.inf) <= elites.value.min() * (1 + 1e-9)


def test_more_replicas_than_the_nodes_hold_are_no_plan(tables, pool):
    elites, bench = new_elites(), new_bench(tables)
    price_counts(
        tables,
        WISHES,
        pool,
        np.array([0]),
        np.array([2]),
        everywhere(tables),
        new_bag(),
        new_bag(),
        bench,
        elites,
    )
    assert elites.number[0] == 0


def test_a_filling_keeps_to_zones_stage_by_stage(tables):
    options, blocks = np.array([0, 2]), np.array([4, 2])
    zones = everywhere(tables)
    assert keeps_to(tables, zones, 2, options, blocks)
    only = np.array([0, 0, 1, 1])
    assert keeps_to(tables, zones._replace(front=0, back=2, only_there=only), 2, options, blocks)
    assert not keeps_to(
        tables, zones._replace(front=0, back=1, only_there=only), 2, options, blocks
    )
