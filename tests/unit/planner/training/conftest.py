"""A curriculum small enough for a test."""

from __future__ import annotations

import pytest

from planner.model.catalogue import find_model
from planner.training.compositions import DEMO_TYPES
from planner.training.curriculum import curriculum_of
from planner.training.settings import TrainingSettings

TINY = TrainingSettings(
    groups=32,
    rollouts=4,
    together=8,
    clusters=4,
    compositions=8,
    teacher_steps=50,
    revisions=1,
    cloning=2,
)


@pytest.fixture(scope="session")
def curriculum():
    return curriculum_of(find_model("tiny-llama"), DEMO_TYPES, TINY)
