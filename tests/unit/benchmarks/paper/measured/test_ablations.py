"""Ablations of the training: each part alone is left out, and a page says what it earns."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from benchmarks.paper.measured import ablations
from benchmarks.paper.measured.ablations import (
    BASE,
    MODEL,
    PARTS,
    WHOLE,
    measure,
    settings_of,
    text,
)
from benchmarks.policy.cases import unseen
from planner.training.settings import TrainingSettings


def test_every_training_differs_from_the_papers_in_one_part():
    for part in PARTS:
        own = settings_of(BASE, part, 0)
        odd = [f.name for f in fields(own) if getattr(own, f.name) != getattr(BASE, f.name)]
        assert len(odd) == (part != WHOLE), part


def test_every_part_that_can_be_left_out_is():
    parts = {one.name for one in fields(TrainingSettings) if one.type == "bool"}
    assert parts == {
        name
        for own in PARTS.values()
        for name in own
        if name.startswith(("uses", "sees", "divides"))
    }
    assert not BASE.uses_cloning


@pytest.mark.slow
def test_a_training_that_is_there_is_not_made_again(tmp_path, monkeypatch):
    base = replace(BASE, groups=16, compositions=4, teacher_steps=50)
    asked = ((WHOLE, "no masks"), (0,), base, unseen(MODEL)[:2], tmp_path)
    first = measure(*asked)
    monkeypatch.setattr(ablations, "Training", None)
    assert measure(*asked) == first
    page = text(first)
    assert "| no masks |" in page
    assert page.count("| - | - |") == 1, "the paper's training earns nothing beside itself"
