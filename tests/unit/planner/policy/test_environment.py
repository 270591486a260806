"""The environment: equal choices, equal plans; compositions beside each other do not meet."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from planner.policy.environment import Episodes
from planner.policy.rollouts import UniformActor, play
from planner.training.imitation import replay
from tests.unit.planner.policy.conftest import environment_on


def played(environments, each, seed=0):
    episodes = Episodes(environments, each)
    play(episodes, UniformActor(np.random.default_rng(seed)))
    return episodes


def test_equal_draws_build_equal_plans(environment):
    one, other = (played([environment], 8) for _ in range(2))
    assert np.array_equal(one.seconds, other.seconds)
    assert [one.templates(r) for r in range(8)] == [other.templates(r) for r in range(8)]


def test_the_best_is_at_least_what_any_rollout_ends_with(environment):
    episodes = played([environment], 32)
    assert episodes.best[0] >= episodes.throughput.max() * (1 - 1e-12)


def test_compositions_of_different_sizes_are_built_beside_each_other(environment, schema):
    other = environment_on("h100=1x8,a100-40=1x4+1x2+1x1", schema)
    episodes = played([environment, other], 8)
    assert episodes.rows == 16
    assert (episodes.best > 0).all()
    for row in range(8, 16):
        for options in episodes.templates(row):
            assert all(option < len(other.space.tp) for option in options)


def test_no_plan_has_more_templates_than_were_wished_for(environment):
    limited = type(environment)(
        environment.pricing,
        environment.space,
        environment.schema,
        environment.limits._replace(max_templates=1),
    )
    episodes = played([limited], 32)
    assert max(len(episodes.templates(row)) for row in range(32)) == 1


def test_without_masks_a_choice_that_cannot_be_packed_ends_the_plan_so_far(environment, network):
    free = replace(environment, has_masks=False)
    episodes = played([free], 256)
    plans = [episodes.templates(row) for row in range(256)]
    assert [bool(plan) for plan in plans] == np.isfinite(episodes.seconds).tolist()
    assert 0 < sum(map(bool, plans)) < 256
    built = {plan: episodes.throughput[row] for row, plan in enumerate(plans) if plan}
    _, with_masks = replay([environment] * len(built), list(built), network)
    assert with_masks.tolist() == list(built.values())


@pytest.mark.slow
def test_without_compilation_the_same_plans_are_built():
    code = (
        "import numpy as np; from tests.unit.planner.policy.test_environment import played; "
        "from tests.unit.planner.policy.conftest import GPUS, environment_on; "
        "from planner.policy.schema import FeatureSchema; "
        "schema = FeatureSchema(('a100-40', 'h100'), (1, 2, 4, 8), 8, 8); "
        "one = environment_on(GPUS, schema, d_max=8); "
        "found = played([one], 6, seed=4); "
        "print([found.templates(r) for r in range(6)], found.seconds.tolist())"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "NUMBA_DISABLE_JIT": flag},
            capture_output=True,
            text=True,
        )
        for flag in ("0", "1")
    ]
    assert said[0].returncode == 0, said[0].stderr
    assert said[0].stdout == said[1].stdout, said[1].stderr
