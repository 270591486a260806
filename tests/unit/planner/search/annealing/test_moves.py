"""The steps of an annealing: what each changes, and what it leaves."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from planner.estimator.objective import SearchLimits
from planner.estimator.tables import MAX_TEMPLATES
from planner.estimator.unplaced_plan import new_plan
from planner.policy.schema import FeatureSchema
from planner.search.annealing.moves import change_stages, is_twice, propose
from tests.unit.planner.policy.conftest import environment_on

SCHEMA = FeatureSchema(("a100-40", "h100"), (1, 2, 4, 8), 24, 8)
WISHES = SearchLimits(6, 4, 0, math.inf, math.inf)


@pytest.fixture(scope="module")
def tables():
    return environment_on("h100=4x4,a100-40=4x4", SCHEMA).pricing.tables


def plan_of(*templates: tuple[int, ...]):
    plan = new_plan()
    plan.number[0] = len(templates)
    for k, options in enumerate(templates):
        plan.depth[k] = len(options)
        plan.options[k, : len(options)] = options
        plan.replicas[k] = 1
    return plan


def templates(plan) -> list[tuple[int, ...]]:
    return [tuple(plan.options[k, : plan.depth[k]].tolist()) for k in range(plan.number[0])]


def stages(plan) -> Counter[int]:
    return Counter(option for options in templates(plan) for option in options)


def gpus(tables, plan) -> int:
    return sum(int(tables.option_tp[option]) for option in stages(plan).elements())


def test_a_stage_of_twice_the_degree_is_of_the_same_type(tables):
    pairs = [
        (large, small)
        for large in range(len(tables.option_tp) + 1)
        for small in range(-1, len(tables.option_tp))
        if is_twice(tables, large, small)
    ]
    assert pairs
    for large, small in pairs:
        assert tables.option_type[large] == tables.option_type[small]
        assert tables.option_tp[large] == 2 * tables.option_tp[small]


def test_a_stage_may_become_two_on_the_same_gpus_and_back(tables):
    large = next(o for o in range(len(tables.option_tp)) if is_twice(tables, o, o - 1))
    halved = joined = False
    for seed in range(1, 500):
        plan = plan_of((large,))
        change_stages(tables, WISHES, plan, 0, np.array([seed]))
        if templates(plan) == [(large - 1, large - 1)]:
            halved = True
            assert gpus(tables, plan) == tables.option_tp[large]
        plan = plan_of((large - 1, large - 1))
        change_stages(tables, WISHES, plan, 0, np.array([seed]))
        joined = joined or templates(plan) == [(large,)]
    assert halved
    assert joined


@pytest.mark.slow
def test_a_proposed_plan_keeps_to_depth_and_number_of_templates(tables):
    state = np.array([7])
    plan = plan_of((0, 1), (2,))
    dirty = np.zeros(MAX_TEMPLATES, np.int64)
    proposed = 0
    for _ in range(2000):
        before = templates(plan)
        kept = plan.replicas.copy()
        dirty[:] = 0
        packs = propose(tables, WISHES, plan, dirty, state)
        assert 1 <= plan.number[0] <= WISHES.max_templates
        assert all(1 <= len(options) <= WISHES.deepest for options in templates(plan))
        for k in range(min(len(before), int(plan.number[0]))):
            if not dirty[k]:
                assert templates(plan)[k] == before[k]
        if packs:
            proposed += 1
            assert all(plan.replicas[k] >= 1 for k in range(plan.number[0]))
        else:  # as the annealing undoes it
            plan = plan_of(*before)
            plan.replicas[:] = kept
    assert proposed > 500


def test_slots_with_other_stages_are_to_be_filled_again_and_no_others(tables):
    state, seen = np.array([7]), Counter()
    for _ in range(400):
        plan, dirty = plan_of((0, 1, 1), (2, 2), (3,)), np.zeros(MAX_TEMPLATES, np.int64)
        plan.pipelines[:3] = 3
        before = templates(plan)
        if not propose(tables, WISHES, plan, dirty, state):
            continue
        for k, options in enumerate(templates(plan)):
            differs = k >= len(before) or options != before[k]
            is_copied = options in before and plan.pipelines[k] == 3
            assert not differs or plan.pipelines[k] == 0 or is_copied
            seen[differs, plan.pipelines[k] == 0] += 1
            assert dirty[k] or not differs
    assert seen[True, True] > 50
    assert seen[False, False] > 50
