"""Capability tests: each can be passed, and each can be failed."""

from __future__ import annotations

import pytest

from benchmarks.paper.cells import cell_of
from benchmarks.paper.measured import table1
from benchmarks.paper.measured.capabilities import (
    NO,
    PARTLY,
    PLANNERS,
    ROWS,
    YES,
    gpus_left,
    node_sizes,
    profiled,
    unequal_layers,
)
from benchmarks.paper.results import CellResults
from tests.unit.benchmarks.paper.test_claims import result


@pytest.mark.parametrize(
    ("shown", "yes", "no"),
    [
        (unequal_layers, "metis", "amp"),
        (profiled, "metis", "hexiscale"),
    ],
)
def test_a_test_tells_planners_apart(shown, yes, no):
    assert shown(yes) == YES
    assert shown(no) in (NO, PARTLY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shown", "yes", "no"), [(gpus_left, "espresso", "hexiscale"), (node_sizes, "hexiscale", "amp")]
)
def test_a_slower_test_tells_planners_apart(shown, yes, no):
    assert shown(yes) == YES
    assert shown(no) == NO


def test_every_row_has_a_mark_of_the_paper_for_every_planner():
    assert all(len(row.paper) == len(PLANNERS) for row in ROWS)
    assert {mark for row in ROWS for mark in row.paper} == {YES, PARTLY, NO}


def test_marks_of_time_follow_from_stored_cells():
    cells = [
        CellResults(
            cell_of("llama3-8b", f"three-{gpus}"),
            (
                result("metis", 1.0, finished=False),
                result("sailor", 1.0, finished=gpus == 128),
                result("amp", 1.0),
                result("heddle-0.5", 99.0),
                result("heddle-same", 100.0),
            ),
            (),
            (),
        )
        for gpus in (128, 256)
    ]
    found = table1.time_marks(cells)
    assert found == {"metis": NO, "sailor": PARTLY, "amp": YES, "heddle": YES}


def test_a_mark_that_differs_is_explained():
    stored = {row.name: dict(zip(PLANNERS, row.paper, strict=True)) for row in ROWS}
    assert "Nowhere" in table1.text(stored, ())
    stored["Utilize partial GPUs"]["metis"] = NO
    assert "its device groups sum to the number of GPUs" in table1.text(stored, ())
