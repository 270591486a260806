"""Draws of both actors: masked, seeded, and as likely as they should be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.policy.environment import Episodes
from planner.policy.rollouts import (
    PolicyActor,
    UniformActor,
    draw,
    draw_uniform,
    play,
    probabilities,
)


def test_uniform_draws_reach_every_kept_candidate_equally_often():
    mask = np.array([[True, False, True, True]]).repeat(3000, axis=0)
    chosen = draw_uniform(mask, np.random.default_rng(0).random(3000))
    counts = np.bincount(chosen, minlength=4)
    assert counts[1] == 0
    assert counts.sum() == 3000
    assert np.ptp(counts[[0, 2, 3]]) < 200


def test_the_largest_draw_takes_the_last_kept_candidate():
    mask = np.array([[True, True, False]])
    assert draw_uniform(mask, np.array([np.nextafter(1.0, 0.0)])).tolist() == [1]


@given(
    st.lists(st.floats(-20, 20), min_size=2, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_a_mask_keeps_the_order_of_what_it_keeps_and_nothing_else(logits, kept):
    mask = np.array([kept[: len(logits)]])
    if not mask.any():
        return
    found = probabilities(np.array([logits], np.float32), mask)[0]
    assert np.isclose(found.sum(), 1)
    assert not found[~mask[0]].any()
    order = np.argsort(np.array(logits, np.float32)[mask[0]], kind="stable")
    assert (np.diff(found[mask[0]][order]) >= -1e-12).all()


def test_draws_are_as_frequent_as_they_are_likely():
    logits = np.log(np.array([[0.7, 0.1, 0.2]], np.float32)).repeat(4000, axis=0)
    chosen = draw(logits, np.ones((4000, 3), bool), np.random.default_rng(0).random(4000))
    assert np.allclose(np.bincount(chosen) / 4000, [0.7, 0.1, 0.2], atol=0.03)


def test_equal_seeds_build_equal_plans(environment, network):
    found = []
    for _ in range(2):
        episodes = Episodes([environment], 8)
        play(episodes, PolicyActor(network, episodes, np.random.default_rng(5)))
        found.append([episodes.templates(row) for row in range(8)])
    assert found[0] == found[1]


def test_a_low_temperature_repeats_the_likeliest_plan(environment, network):
    episodes = Episodes([environment], 8)
    generator = np.random.default_rng(0)
    play(episodes, PolicyActor(network, episodes, generator, (1e-4, 1e-4)))
    assert len({episodes.templates(row) for row in range(8)}) == 1


def test_rollouts_keep_to_the_plans_that_may_be_priced(environment):
    episodes = Episodes([environment], 16)
    play(episodes, UniformActor(np.random.default_rng(5)), lambda plans: plans <= 16)
    assert max(len(episodes.templates(row)) for row in range(16)) == 1
    assert episodes.evaluations == 16
    assert len(episodes.live)
