"""The job of the growing cluster: a narrow model whose devices take the time of a wide one."""

from __future__ import annotations

import pytest

from benchmarks.evaluation.references import expanded
from benchmarks.paper.cells import cell_of
from benchmarks.paper.measured.stand_in import MODEL, SLOWDOWN, STAND_IN, slowed_times
from benchmarks.paper.store import read_cell
from planner.cost.evaluate import cost_of


def test_every_rank_takes_the_slowed_time_of_the_papers_model():
    cell = cell_of(MODEL, "grow-7")
    plan = expanded(read_cell(cell)["heddle-3"]["counted"]["plan"])
    question = cell.question()
    asked = question.workload, question.composition, question.profile
    stages = [stage for replica in cost_of(plan, *asked).replicas for stage in replica.stages]
    times = slowed_times(plan)
    assert len(times) == plan.gpus
    assert sorted({one.forward_s for one in times}) == pytest.approx(
        sorted({SLOWDOWN * stage.forward_s for stage in stages})
    )


def test_the_stand_in_is_as_deep_as_the_papers_model():
    model = cell_of(MODEL, "grow-3").question().workload.model
    assert STAND_IN["num_hidden_layers"] == model.layers
