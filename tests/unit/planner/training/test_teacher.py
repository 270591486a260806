"""Teachers: their plans are those that the policy's environment builds from the same choices."""

from __future__ import annotations

import numpy as np
import pytest

from planner.policy.environment import Episodes
from planner.policy.rollouts import UniformActor, play
from planner.training.imitation import replay
from planner.training.teacher import teach
from tests.unit.planner.policy.conftest import environment_on, untrained
from tests.unit.planner.policy.test_partial_plans import SCHEMA

GPUS = "h100=4x4,a100-40=4x4+3x1"


@pytest.mark.slow
def test_a_teacher_beats_as_many_random_plans():
    environment = environment_on(GPUS, SCHEMA)
    lesson = teach(environment.pricing.tables, environment.limits, 400, 0)
    episodes = Episodes([environment], 600)
    play(episodes, UniformActor(np.random.default_rng(0)))
    assert environment.space.batch / lesson.seconds > episodes.best[0]


def test_equal_seeds_teach_equally():
    environment = environment_on(GPUS, SCHEMA)
    one, other = (teach(environment.pricing.tables, environment.limits, 100, 3) for _ in range(2))
    assert one == other


def test_what_is_taught_can_be_repeated():
    environment = environment_on(GPUS, SCHEMA)
    lesson = teach(environment.pricing.tables, environment.limits, 300, 1)
    _, throughput = replay([environment], [lesson.templates], untrained(SCHEMA))
    assert throughput[0] == pytest.approx(environment.space.batch / lesson.seconds, rel=0.01)


def test_a_lesson_that_begins_with_a_plan_is_no_worse_than_the_plan():
    environment = environment_on("h100=2x4,a100-40=4x4+9x1", SCHEMA)
    tables, limits = environment.pricing.tables, environment.limits
    first = teach(tables, limits, 300, 1)
    second = teach(tables, limits, 10, 2, first.templates)
    assert second.seconds <= first.seconds
    assert second.seconds < teach(tables, limits, 10, 2).seconds


def test_a_plan_that_cannot_be_built_is_no_start():
    environment = environment_on(GPUS, SCHEMA)
    everything = tuple((0,) * 24 for _ in range(8))
    assert teach(environment.pricing.tables, environment.limits, 10, 2, everything).templates == ()
