"""The estimator's splits are as fast as the best of all splits, for every M."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from planner.estimator.build_tables import pricing_of
from planner.estimator.fill.general_split import general_splits
from planner.estimator.fill.linear_split import linear_splits
from planner.estimator.unplaced_plan import UnplacedPlan, new_plan
from planner.estimator.workspace import Workspace, new_workspace
from tests.builders import demo_profile, nodes, workload
from tests.oracle.splits import (
    MICRO_BATCHES,
    Split,
    SplitCase,
    best_split,
    every_split,
    kind_cases,
    linear_cases,
    pipeline_s,
    stage_times,
    table_cases,
)

SEEDS = range(6)


def threshold_split_s(case: SplitCase, micro_batches: int) -> float:
    """The best seconds by another way: the least sum of stages that keep to a bottleneck."""
    depth = len(case.caps)
    bottlenecks = {
        case.costs(stage, first, n)
        for stage in range(depth)
        for first in range(case.layers)
        for n in range(1, case.layers - first + 1)
    }

    def least_s(limit_s: float) -> float:
        @cache
        def rest_s(stage: int, first: int) -> float:
            if stage == depth:
                return 0.0 if first == case.layers else math.inf
            most = min(case.caps[stage], case.layers - first)
            return min(
                (
                    case.costs(stage, first, n) + rest_s(stage + 1, first + n)
                    for n in range(1, most + 1)
                    if case.costs(stage, first, n) <= limit_s
                ),
                default=math.inf,
            )

        return rest_s(0, 0)

    return min((micro_batches - 1) * limit_s + least_s(limit_s) for limit_s in bottlenecks)


def assert_best(
    case: SplitCase, found: list[tuple], best: Split | None, micro_batches: int
) -> None:
    """Each (layers, bottleneck, sum) is a split of the case, and one is as fast as the best."""
    for layers, slowest_s, sum_s in found:
        assert sum(layers) == case.layers, case
        assert all(1 <= n <= cap for n, cap in zip(layers, case.caps, strict=True)), case
        times = stage_times(case.costs, layers)
        assert (slowest_s, sum_s) == pytest.approx((max(times), sum(times))), case
    found_s = min(((micro_batches - 1) * tau + total for _, tau, total in found), default=None)
    assert (found_s is None) == (best is None), case
    assert best is None or found_s == pytest.approx(best.seconds, rel=1e-12), case


def room_for(case: SplitCase, most: int) -> tuple[Workspace, UnplacedPlan]:
    """Where the estimator splits such a case, at most so often."""
    pricing = pricing_of(workload(), nodes("fast-0:1"), demo_profile())
    assert pricing is not None
    plan = new_plan(slots=1, fillings=most)
    plan.depth[0] = len(case.caps)
    return new_workspace(pricing.tables._replace(dense=case.dense, layers=case.layers)), plan


def found_of(plan: UnplacedPlan, number: int) -> list[tuple]:
    """(layers, bottleneck, sum) of the fillings found."""
    blocks = plan.blocks[0, :, : plan.depth[0]].tolist()
    return [(tuple(blocks[f]), plan.tau_s[0, f], plan.sum_s[0, f]) for f in range(number)]


def general_estimator_splits(case: SplitCase, most: int, micro_batches: int) -> list[tuple]:
    """What the estimator finds from a table of seconds by blocks of both kinds."""
    depth, layers, dense = len(case.caps), case.layers, case.dense
    work, plan = room_for(case, most)
    work.rows[:depth] = math.inf
    for stage, first in np.ndindex(depth, dense + 1):
        for others in range(layers - dense + 1):
            n = first + others
            if 0 < n <= case.caps[stage]:
                work.rows[stage, first, others] = case.costs(stage, dense - first, n)
    number = general_splits(dense, layers, micro_batches, work, plan, 0, 0, most)
    return found_of(plan, number)


def linear_estimator_splits(case: SplitCase, most: int, micro_batches: int) -> list[tuple]:
    """What the estimator finds from seconds of a block and of all else."""
    depth, (work, plan) = len(case.caps), room_for(case, most)
    work.block_s[:depth], work.fixed_s[:depth] = case.block_s, case.other_s
    work.caps[:depth] = case.caps
    return found_of(plan, linear_splits(case.layers, micro_batches, work, plan, 0, 0, most))


@pytest.mark.parametrize(
    ("cases", "estimator_splits"),
    [
        (linear_cases, linear_estimator_splits),
        (linear_cases, general_estimator_splits),
        (table_cases, general_estimator_splits),
        (kind_cases, general_estimator_splits),
    ],
)
@pytest.mark.parametrize("micro_batches", MICRO_BATCHES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_split_of_the_estimator_is_the_best_of_all(seed, micro_batches, cases, estimator_splits):
    for case in cases(seed):
        best = best_split(case.costs, case.caps, case.layers, micro_batches)
        found = estimator_splits(case, 40, micro_batches)
        assert_best(case, found, best, micro_batches)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_split_of_the_estimator_has_the_smallest_bottleneck(seed):
    for cases in (table_cases, kind_cases):
        for case in cases(seed):
            found = general_estimator_splits(case, 1, 1)
            slowest = [
                max(stage_times(case.costs, split))
                for split in every_split(len(case.caps), case.layers)
                if all(n <= cap for n, cap in zip(split, case.caps, strict=True))
            ]
            assert [row[1] for row in found] == ([min(slowest)] if slowest else []), case


@pytest.mark.parametrize("cases", [linear_cases, table_cases, kind_cases])
@pytest.mark.parametrize("micro_batches", MICRO_BATCHES)
def test_the_enumeration_agrees_with_a_dynamic_programme(cases, micro_batches):
    for case in cases(0):
        best = best_split(case.costs, case.caps, case.layers, micro_batches)
        other_s = threshold_split_s(case, micro_batches)
        assert (best.seconds if best else math.inf) == pytest.approx(other_s, rel=1e-12), case


def test_every_split_is_met_once():
    for layers in range(1, 11):
        for depth in range(1, 6):
            splits = list(every_split(depth, layers))
            assert len(set(splits)) == len(splits) == math.comb(layers - 1, depth - 1)
            assert all(sum(split) == layers and min(split) >= 1 for split in splits)


def test_with_few_micro_batches_the_smallest_bottleneck_is_not_the_best_split():
    best = best_split(lambda stage, _, n: (1.0, 1.2)[stage] * n, (4, 4), 4, 1)
    even = best_split(lambda stage, _, n: (1.0, 1.2)[stage] * n, (4, 4), 4, 16)
    assert (best.layers, even.layers) == ((3, 1), (2, 2))
    assert best.seconds == pipeline_s([3.0, 1.2], 1)
