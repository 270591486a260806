"""The questions of a training: others than those it is judged by, and always the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import UnprofiledConfiguration
from planner.model.catalogue import find_model
from planner.training.compositions import (
    DEMO_TYPES,
    SIMULATION_TYPES,
    all_types,
    training_compositions,
)
from planner.training.curriculum import VALIDATION, curriculum_of
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


@pytest.mark.slow
def test_half_of_the_questions_are_those_of_the_usual_types():
    model, types = find_model("llama3-8b"), all_types("llama3-8b")
    found = curriculum_of(model, types, replace(TrainingSettings(), compositions=21))
    own = curriculum_of(model, SIMULATION_TYPES, replace(TrainingSettings(), compositions=11))
    assert found.training[::2] == own.training
    assert found.validation[:VALIDATION] == own.validation
    assert len(found.validation) == 2 * VALIDATION
    assert {n for one in found.training for n in one.composition.gpu_types} - set(SIMULATION_TYPES)
    trained = {one.composition for one in found.training}
    assert not trained & {one.composition for one in found.validation}


def test_a_type_without_a_profile_is_refused():
    with refused(UnprofiledConfiguration, "Unknown"):
        curriculum_of(find_model("llama3-8b"), ("h999",), TrainingSettings())
