"""Teachers: their plans are those that the policy's environment builds from the same choices."""

from __future__ import annotations

import numpy as np
import pytest

from planner.policy.environment import Choice, Constructions
from planner.policy.rollouts import UniformChooser, play
from planner.training.imitation import replay
from planner.training.teacher_walk import teach
from planner.training.torch_network import as_network, initial_weights
from tests.unit.planner.policy.conftest import environment_on
from tests.unit.planner.policy.test_drafts import SCHEMA

GPUS = "h100=4x4,a100-40=4x4+3x1"


@pytest.mark.slow
def test_a_teacher_beats_as_many_random_plans():
    environment = environment_on(GPUS, SCHEMA)
    lesson = teach(environment.pricing.tables, environment.wishes, 400, 0)
    constructions = Constructions([environment], 600)
    play(constructions, UniformChooser(np.random.default_rng(0)))
    assert environment.menu.batch / lesson.seconds > constructions.best[0]


def test_equal_seeds_teach_equally():
    environment = environment_on(GPUS, SCHEMA)
    one, other = (teach(environment.pricing.tables, environment.wishes, 100, 3) for _ in range(2))
    assert one == other


def test_what_is_taught_can_be_repeated():
    environment = environment_on(GPUS, SCHEMA)
    lesson = teach(environment.pricing.tables, environment.wishes, 300, 1)
    classes, menu = environment.pricing.tables.option_type, environment.menu
    script = tuple(
        Choice(len(row), tuple((int(classes[o]), int(menu.degree[o])) for o in row))
        for row in lesson.templates
    )
    network = as_network(initial_weights(SCHEMA, 0), uses_film=True)
    _, throughput = replay([environment], [script], network)
    assert throughput[0] == pytest.approx(environment.menu.batch / lesson.seconds, rel=0.01)
