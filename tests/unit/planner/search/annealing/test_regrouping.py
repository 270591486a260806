"""Stages that are regrouped: which go where, and that no GPU is lost on the way."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES
from planner.estimator.unplaced_plan import new_plan
from planner.search.annealing.regrouping import (
    change_form,
    cut_template,
    exchange_stages,
    join_templates,
    regroup,
    swap_tails,
)

DEEPEST, TEMPLATES = 6, 4
FILLED = 5  # pipelines when the slots were filled


def plan_of(*templates: tuple[int, ...], replicas: tuple[int, ...] = ()):
    plan = new_plan()
    plan.number[0] = len(templates)
    for k, options in enumerate(templates):
        plan.depth[k] = len(options)
        plan.options[k, : len(options)] = options
        plan.replicas[k] = replicas[k] if replicas else 1
        plan.pipelines[k] = FILLED
    return plan


def state_of(seed: int):
    """Far from its neighbours from the first number on."""
    return np.array([seed * 2_654_435])


def templates(plan) -> list[tuple[int, ...]]:
    return [tuple(plan.options[k, : plan.depth[k]].tolist()) for k in range(plan.number[0])]


def stages(plan) -> Counter[int]:
    """How many stages of each option all replicas have."""
    count: Counter[int] = Counter()
    for k, options in enumerate(templates(plan)):
        for option in options:
            count[option] += int(plan.replicas[k])
    return count


def test_exchanged_stages_are_the_same_stages():
    seen = set()
    for seed in range(1, 400):
        plan = plan_of((0, 1, 2), (3, 4))
        if exchange_stages(DEEPEST, plan, 0, 1, state_of(seed)):
            assert stages(plan) == Counter((0, 1, 2, 3, 4))
            seen.add(tuple(len(options) for options in templates(plan)))
    assert seen == {(3, 2), (2, 3), (4, 1), (1, 4)}


def test_the_last_stage_of_a_template_is_not_given_away():
    for seed in range(1, 50):
        plan = plan_of((0,), (1, 2))
        if not exchange_stages(DEEPEST, plan, 0, 1, state_of(seed)):
            assert templates(plan) in ([(0,), (1, 2)], [(1, 2), (0,)])
        assert min(plan.depth[:2]) >= 1


def test_equal_stages_are_not_exchanged():
    for seed in range(1, 50):
        plan = plan_of((0, 0), (0,))
        if not exchange_stages(DEEPEST, plan, 0, 1, state_of(seed)):
            break
    else:
        pytest.fail("swapping equal stages counted as a change")


def test_all_that_is_behind_a_point_of_each_changes_places():
    plan = plan_of((0, 1, 2, 3), (4, 5))
    assert swap_tails(DEEPEST, plan, 0, 1, 1, 1)
    assert templates(plan) == [(0, 5), (4, 1, 2, 3)]
    assert swap_tails(DEEPEST, plan, 0, 1, 2, 3)  # none for one
    assert templates(plan) == [(0, 5, 3), (4, 1, 2)]


@pytest.mark.parametrize(
    ("one", "other", "s", "r"),
    [
        ((0, 1, 2), (3, 4), 0, 0),  # templates would change their numbers and nothing else
        ((0, 1, 2), (3, 4), 0, 2),  # nothing would stay
        ((0, 1, 2, 3), (4, 5, 6, 7), 3, 1),  # six stages and two are allowed, seven are not
    ],
)
def test_tails_that_cannot_be_swapped_stay(one, other, s, r):
    plan = plan_of(one, other)
    possible = swap_tails(DEEPEST if r != 1 else 5, plan, 0, 1, s, r)
    assert not possible
    assert templates(plan) == [one, other]


def test_swapping_equal_tails_is_no_change():
    plan = plan_of((0, 2, 3), (1, 2, 3))
    assert not swap_tails(DEEPEST, plan, 0, 1, 1, 1)
    assert templates(plan) == [(0, 2, 3), (1, 2, 3)]


def test_pipelines_are_made_deeper_or_shallower_and_their_number_fits():
    seen = set()
    for seed in range(1, 200):
        plan = plan_of((0, 1), replicas=(12,))
        if change_form(DEEPEST, plan, 0, state_of(seed)):
            assert plan.pipelines[0] == 0
            seen.add((templates(plan)[0], int(plan.replicas[0])))
    assert seen == {
        ((0,), 24),
        ((0, 0, 1), 8),
        ((0, 0, 1, 1), 6),
        ((0, 0, 0, 1, 1), 4),  # four GPUs are given back
        ((0, 0, 0, 1, 1, 1), 4),
    }


@pytest.mark.parametrize(("depth", "replicas"), [(1, 1), (4, 1), (4, 8), (6, 2)])
def test_a_form_keeps_to_the_deepest_and_to_the_gpus_there_are(depth, replicas):
    stages_of = tuple(range(depth))
    for seed in range(1, 100):
        plan = plan_of(stages_of, replicas=(replicas,))
        if change_form(DEEPEST, plan, 0, state_of(seed)):
            assert 1 <= plan.depth[0] <= DEEPEST
            assert plan.depth[0] != depth
            assert 1 <= plan.replicas[0] <= depth * replicas // plan.depth[0]
            assert list(templates(plan)[0]) == sorted(templates(plan)[0])  # in their order
        else:
            assert (templates(plan), plan.replicas[0]) == ([stages_of], replicas)


def test_a_template_joins_behind_another_and_the_last_takes_its_place():
    plan = plan_of((0, 1), (2,), (3, 4), replicas=(2, 3, 1))
    assert join_templates(DEEPEST, plan, 0, 1)
    assert templates(plan) == [(3, 4), (2, 0, 1)]
    assert plan.replicas[:2].tolist() == [1, 2]  # no more than both had
    assert plan.pipelines[:2].tolist() == [FILLED, 0]


def test_the_last_template_may_take_the_stages_of_another():
    plan = plan_of((0, 1), (2,))
    assert join_templates(DEEPEST, plan, 0, 1)
    assert templates(plan) == [(2, 0, 1)]


@pytest.mark.parametrize(("k", "j", "deepest"), [(0, 0, DEEPEST), (0, 1, 2)])
def test_a_template_joins_no_other_than_it_can(k, j, deepest):
    plan = plan_of((0, 1), (2,))
    assert not join_templates(deepest, plan, k, j)
    assert templates(plan) == [(0, 1), (2,)]


def test_a_template_is_cut_anywhere_between_its_stages():
    seen = set()
    for seed in range(1, 50):
        plan = plan_of((0, 1, 2), replicas=(2,))
        cut_template(plan, 0, state_of(seed))
        assert plan.replicas[:2].tolist() == [2, 2]
        assert plan.pipelines[:2].tolist() == [0, 0]
        seen.add(tuple(templates(plan)))
    assert seen == {((0,), (1, 2)), ((0, 1), (2,))}


@pytest.mark.slow
def test_what_regrouping_changes_is_marked():
    kinds = set()
    for seed in range(1, 400):
        plan, dirty = plan_of((0, 1), (2, 3), (4,)), np.zeros(MAX_TEMPLATES, np.int64)
        before = templates(plan)
        changed = regroup(DEEPEST, TEMPLATES, plan, seed % 3, dirty, state_of(seed))
        if changed < 0:
            continue
        after = templates(plan)
        assert changed < len(after)
        for k, options in enumerate(after):
            is_moved = options in before and plan.pipelines[k] == FILLED
            assert dirty[k] or k == changed or before[k] == options
            assert (k < len(before) and before[k] == options) or not plan.pipelines[k] or is_moved
        kinds.add(len(after))
    assert kinds == {2, 3, 4}


def test_no_more_templates_than_are_allowed():
    for seed in range(1, 100):
        plan, dirty = plan_of((0, 1), (2, 3)), np.zeros(MAX_TEMPLATES, np.int64)
        regroup(DEEPEST, 2, plan, 0, dirty, state_of(seed))
        assert plan.number[0] <= 2
        assert max(plan.depth[:2]) <= DEEPEST <= MAX_DEPTH
