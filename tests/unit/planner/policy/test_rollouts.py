"""Uniform draws: every candidate that is kept, and no other."""

from __future__ import annotations

import numpy as np

from planner.policy.rollouts import draw_uniform


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
