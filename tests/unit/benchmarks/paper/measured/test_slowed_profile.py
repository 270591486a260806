"""A slowed profile asks for the same plan, and says that it takes so many times as long."""

from __future__ import annotations

import pytest

from benchmarks.evaluation.references import expanded
from benchmarks.paper.cells import cell_of
from benchmarks.paper.measured.slowed_profile import write_slowed
from benchmarks.paper.measured.stand_in import MODEL
from benchmarks.paper.store import read_cell
from benchmarks.paper.tables import HEDDLE
from planner.cost.evaluate import cost_of
from planner.profiles.generator import find_profile


def test_every_plan_takes_so_many_times_as_long(tmp_path):
    cell = cell_of(MODEL, "grow-19")
    question = cell.question()
    (tmp_path / MODEL).mkdir()
    write_slowed(tmp_path / MODEL, MODEL, question.composition.gpu_types, 4.0)
    slowed = find_profile(question.workload, tmp_path)
    assert set(slowed.types) == set(question.composition.gpu_types)
    for planner in (HEDDLE, "sailor"):
        plan = expanded(read_cell(cell)[planner]["counted"]["plan"])
        asked = question.workload, question.composition
        once, now = (cost_of(plan, *asked, one) for one in (question.profile, slowed))
        assert now.iteration_s == pytest.approx(4 * once.iteration_s)
