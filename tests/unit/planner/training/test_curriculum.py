"""The questions of a training: others than those it is judged by, and always the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import UnprofiledConfiguration
from planner.model.catalogue import find_model
from planner.training.compositions import DEMO_TYPES, SIMULATION_TYPES, training_compositions
from planner.training.curriculum import curriculum_of
from planner.training.settings import TrainingSettings
from tests.refusals import refused


def test_nothing_that_a_training_is_judged_by_is_trained_on(curriculum):
    trained = {one.composition for one in curriculum.training}
    assert curriculum.validation
    assert not trained & {one.composition for one in curriculum.validation}


@pytest.mark.slow
def test_equal_settings_ask_equal_questions(curriculum):
    again = curriculum_of(
        find_model("tiny-llama"), DEMO_TYPES, TrainingSettings(compositions=8, seed=5)
    )
    assert again.digest == curriculum.digest  # the seed of the training has no part in it


@pytest.mark.slow
def test_the_first_94_are_the_standard_set():
    settings = TrainingSettings(compositions=94)
    found = curriculum_of(find_model("llama3-8b"), SIMULATION_TYPES, settings)
    standard = set(training_compositions(SIMULATION_TYPES, 0))
    assert len(found.training) == 94
    assert len({one.composition for one in found.training} & standard) >= 93


@pytest.mark.slow
def test_more_compositions_keep_the_fewer():
    few, more = (
        curriculum_of(
            find_model("llama3-8b"),
            SIMULATION_TYPES,
            replace(TrainingSettings(), compositions=number),
        )
        for number in (10, 20)
    )
    assert more.training[:10] == few.training


def test_a_type_without_a_profile_is_refused():
    with refused(UnprofiledConfiguration, "Unknown"):
        curriculum_of(find_model("llama3-8b"), ("h999",), TrainingSettings())
