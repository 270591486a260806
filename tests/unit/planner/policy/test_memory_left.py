"""Masks that look ahead, against every template of a small cluster whose GPUs hold little."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np

from planner.estimator.unplaced_plan import new_plan
from planner.estimator.workspace import new_workspace
from planner.policy.closing import fill_last
from planner.policy.environment import Episodes
from planner.policy.rollouts import UniformActor, play
from planner.policy.schema import FeatureSchema
from tests.unit.planner.policy.conftest import environment_on

SCHEMA = FeatureSchema(("rtx-3090", "v100-16"), (1, 2, 4), 24, 8)
SMALL = "rtx-3090=10x1,v100-16=2x1"  # a template takes nearly all of them
ROOMY = "rtx-3090=4x2,v100-16=4x1"


def templates_that_fit(one, depth):
    """Every row of options that GPUs are there for, and that holds the model."""
    t, plan, work = one.pricing.tables, new_plan(), new_workspace(one.pricing.tables)
    for row in product(range(len(one.space.tp)), repeat=depth):
        gpus = Counter()
        for option in row:
            gpus[option] += int(one.space.tp[option])
        if any(number > one.space.room[option] for option, number in gpus.items()):
            continue
        plan.number[0], plan.depth[0] = 1, depth
        plan.options[0, :depth] = row
        if np.isfinite(fill_last(t, plan, work)):
            yield row


def test_a_depth_is_left_out_exactly_when_none_of_its_templates_holds_the_model():
    one = environment_on(SMALL, SCHEMA, d_max=12)
    mask = Episodes([one], 1).observe_depths(np.array([0])).mask[0]
    fits = [any(True for _ in templates_that_fit(one, depth)) for depth in range(1, 13)]
    assert mask[1:13].tolist() == fits
    assert 0 < sum(fits) < 12


def test_of_many_templates_that_fit_nearly_all_can_be_chosen():
    one = environment_on(ROOMY, SCHEMA, d_max=9)
    rows, possible, fits = np.array([0]), 0, list(templates_that_fit(one, 9))
    for row in fits:
        episodes = Episodes([one], 1)
        episodes.open(rows, np.array([9]))
        for option in row:
            chosen = one.space.option_class[option], one.space.degree[option]
            if not episodes.observe_stages(rows).mask[0][chosen]:
                break
            episodes.place(rows, *(np.array([index]) for index in chosen))
        else:
            possible += 1
    assert len(fits) > 50
    assert possible >= 0.98 * len(fits)


def test_uniform_rollouts_on_many_small_gpus_end_in_plans():
    episodes = Episodes([environment_on("rtx-3090=35x1,v100-16=18x1", SCHEMA)], 128)
    play(episodes, UniformActor(np.random.default_rng(0)))
    assert np.isfinite(episodes.seconds).mean() >= 0.95


def test_where_no_depth_holds_the_model_all_stay_and_the_rollout_ends_without_a_plan():
    one = environment_on("v100-16=2x2", SCHEMA)
    episodes = Episodes([one], 4)
    assert episodes.observe_depths(np.arange(4)).mask[:, 1:5].all()
    play(episodes, UniformActor(np.random.default_rng(0)))
    assert not np.isfinite(episodes.seconds).any()
