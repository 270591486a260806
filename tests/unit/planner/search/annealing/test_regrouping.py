"""Stages that are regrouped: which go where, and that no GPU is lost on the way."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from planner.estimator.bag import new_bag
from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES
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


def bag_of(*templates: tuple[int, ...], replicas: tuple[int, ...] = ()):
    bag = new_bag()
    bag.number[0] = len(templates)
    for k, options in enumerate(templates):
        bag.depth[k] = len(options)
        bag.options[k, : len(options)] = options
        bag.replicas[k] = replicas[k] if replicas else 1
        bag.pipelines[k] = FILLED
    return bag


def state_of(seed: int):
    """Far from its neighbours from the first number on."""
    return np.array([seed * 2_654_435])


def templates(bag) -> list[tuple[int, ...]]:
    return [tuple(bag.options[k, : bag.depth[k]].tolist()) for k in range(bag.number[0])]


def stages(bag) -> Counter[int]:
    """How many stages of each option all replicas have."""
    count: Counter[int] = Counter()
    for k, options in enumerate(templates(bag)):
        for option in options:
            count[option] += int(bag.replicas[k])
    return count


def test_exchanged_stages_are_the_same_stages():
    seen = set()
    for seed in range(1, 400):
        bag = bag_of((0, 1, 2), (3, 4))
        if exchange_stages(DEEPEST, bag, 0, 1, state_of(seed)):
            assert stages(bag) == Counter((0, 1, 2, 3, 4))
            seen.add(tuple(len(options) for options in templates(bag)))
    assert seen == {(3, 2), (2, 3), (4, 1), (1, 4)}


def test_the_last_stage_of_a_template_is_not_given_away():
    for seed in range(1, 50):
        bag = bag_of((0,), (1, 2))
        if not exchange_stages(DEEPEST, bag, 0, 1, state_of(seed)):
            assert templates(bag) in ([(0,), (1, 2)], [(1, 2), (0,)])
        assert min(bag.depth[:2]) >= 1


def test_equal_stages_are_not_exchanged():
    for seed in range(1, 50):
        bag = bag_of((0, 0), (0,))
        if not exchange_stages(DEEPEST, bag, 0, 1, state_of(seed)):
            break
    else:
        pytest.fail("swapping equal stages counted as a change")


def test_all_that_is_behind_a_point_of_each_changes_places():
    bag = bag_of((0, 1, 2, 3), (4, 5))
    assert swap_tails(DEEPEST, bag, 0, 1, 1, 1)
    assert templates(bag) == [(0, 5), (4, 1, 2, 3)]
    assert swap_tails(DEEPEST, bag, 0, 1, 2, 3)  # none for one
    assert templates(bag) == [(0, 5, 3), (4, 1, 2)]


@pytest.mark.parametrize(
    ("one", "other", "s", "r"),
    [
        ((0, 1, 2), (3, 4), 0, 0),  # templates would change their numbers and nothing else
        ((0, 1, 2), (3, 4), 0, 2),  # nothing would stay
        ((0, 1, 2, 3), (4, 5, 6, 7), 3, 1),  # six stages and two are allowed, seven are not
    ],
)
def test_tails_that_cannot_be_swapped_stay(one, other, s, r):
    bag = bag_of(one, other)
    possible = swap_tails(DEEPEST if r != 1 else 5, bag, 0, 1, s, r)
    assert not possible
    assert templates(bag) == [one, other]


def test_swapping_equal_tails_is_no_change():
    bag = bag_of((0, 2, 3), (1, 2, 3))
    assert not swap_tails(DEEPEST, bag, 0, 1, 1, 1)
    assert templates(bag) == [(0, 2, 3), (1, 2, 3)]


def test_pipelines_are_made_deeper_or_shallower_and_their_number_fits():
    seen = set()
    for seed in range(1, 200):
        bag = bag_of((0, 1), replicas=(12,))
        if change_form(DEEPEST, bag, 0, state_of(seed)):
            assert bag.pipelines[0] == 0
            seen.add((templates(bag)[0], int(bag.replicas[0])))
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
        bag = bag_of(stages_of, replicas=(replicas,))
        if change_form(DEEPEST, bag, 0, state_of(seed)):
            assert 1 <= bag.depth[0] <= DEEPEST
            assert bag.depth[0] != depth
            assert 1 <= bag.replicas[0] <= depth * replicas // bag.depth[0]
            assert list(templates(bag)[0]) == sorted(templates(bag)[0])  # in their order
        else:
            assert (templates(bag), bag.replicas[0]) == ([stages_of], replicas)


def test_a_template_joins_behind_another_and_the_last_takes_its_place():
    bag = bag_of((0, 1), (2,), (3, 4), replicas=(2, 3, 1))
    assert join_templates(DEEPEST, bag, 0, 1)
    assert templates(bag) == [(3, 4), (2, 0, 1)]
    assert bag.replicas[:2].tolist() == [1, 2]  # no more than both had
    assert bag.pipelines[:2].tolist() == [FILLED, 0]


def test_the_last_template_may_take_the_stages_of_another():
    bag = bag_of((0, 1), (2,))
    assert join_templates(DEEPEST, bag, 0, 1)
    assert templates(bag) == [(2, 0, 1)]


@pytest.mark.parametrize(("k", "j", "deepest"), [(0, 0, DEEPEST), (0, 1, 2)])
def test_a_template_joins_no_other_than_it_can(k, j, deepest):
    bag = bag_of((0, 1), (2,))
    assert not join_templates(deepest, bag, k, j)
    assert templates(bag) == [(0, 1), (2,)]


def test_a_template_is_cut_anywhere_between_its_stages():
    seen = set()
    for seed in range(1, 50):
        bag = bag_of((0, 1, 2), replicas=(2,))
        cut_template(bag, 0, state_of(seed))
        assert bag.replicas[:2].tolist() == [2, 2]
        assert bag.pipelines[:2].tolist() == [0, 0]
        seen.add(tuple(templates(bag)))
    assert seen == {((0,), (1, 2)), ((0, 1), (2,))}


@pytest.mark.slow
def test_what_regrouping_changes_is_marked():
    kinds = set()
    for seed in range(1, 400):
        bag, dirty = bag_of((0, 1), (2, 3), (4,)), np.zeros(MAX_TEMPLATES, np.int64)
        before = templates(bag)
        changed = regroup(DEEPEST, TEMPLATES, bag, seed % 3, dirty, state_of(seed))
        if changed < 0:
            continue
        after = templates(bag)
        assert changed < len(after)
        for k, options in enumerate(after):
            is_moved = options in before and bag.pipelines[k] == FILLED
            assert dirty[k] or k == changed or before[k] == options
            assert (k < len(before) and before[k] == options) or not bag.pipelines[k] or is_moved
        kinds.add(len(after))
    assert kinds == {2, 3, 4}


def test_no_more_templates_than_are_allowed():
    for seed in range(1, 100):
        bag, dirty = bag_of((0, 1), (2, 3)), np.zeros(MAX_TEMPLATES, np.int64)
        regroup(DEEPEST, 2, bag, 0, dirty, state_of(seed))
        assert bag.number[0] <= 2
        assert max(bag.depth[:2]) <= DEEPEST <= MAX_DEPTH
