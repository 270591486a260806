"""Policies on compositions of any GPU types: held back from training, and told as measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.pages import faults_of_header, faults_of_names
from benchmarks.policy.mixes import TODAY, WAYS, Mixed, held_back, page
from planner.model.catalogue import find_model
from planner.training.compositions import all_types
from planner.training.curriculum import curriculum_of
from planner.training.settings import TrainingSettings
from tests.unit.planner.policy.test_card import CARD

MODEL = "llama3-8b"


def row(composition: str, few: float, many: float) -> Mixed:
    """One composition, its plans in per cent of the longer search."""
    return Mixed(
        model=MODEL,
        way=TODAY,
        composition=composition,
        batch=2048,
        profile="",
        weights="",
        reference_samples_s=200.0,
        samples_s={"16": 2 * few, "128": 2 * many},
    )


@pytest.mark.slow
def test_no_policy_is_trained_on_what_it_is_measured_on():
    questions = held_back(MODEL, all_types(MODEL))
    settings = replace(TrainingSettings(), compositions=60)
    trained = curriculum_of(find_model(MODEL), all_types(MODEL), settings).training
    assert len(questions) == 12
    assert not {one.composition for one in questions} & {one.composition for one in trained}


def test_the_page_gives_shares_of_the_longer_search_and_names_the_worst():
    card = replace(CARD, commit="0123456789+", seconds={"clock": 300.4, "processor": 200.0})
    rows = [row("b200=3x4", 90.0, 100.0), row("v100-16=9x2", 80.0, 94.0)]
    before = [
        replace(one, way=way, samples_s={"16": 100.0, "128": 120.0})
        for one in rows
        for way in WAYS
        if way != TODAY
    ]
    text = page([*before, *rows], [card], ["A note."])
    assert (
        "| llama3-8b | 16 | 2 | 85.00 % (**missed**) | 80.00 % (**missed**) | v100-16=9x2 |" in text
    )
    assert "| llama3-8b | 128 | 2 | 97.00 % (met) | 94.00 % (met) | v100-16=9x2 |" in text
    assert "| llama3-8b | b200=3x4 | 2048 | 200.0 | 90.0 % | 100.0 % |" in text
    assert "| llama3-8b | 16 | 50.00 % | 85.00 % | 50.00 % | 80.00 % |" in text
    assert "| llama3-8b | 128 | 60.00 % | 97.00 % | 60.00 % | 94.00 % |" in text
    assert "| 300 s, 200 s | 01234567 |" in text
    assert text.endswith("## Notes\n\n- A note.\n")
    assert not faults_of_header(text)
    assert not faults_of_names(text)
