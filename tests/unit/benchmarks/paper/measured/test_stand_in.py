"""The job of the growing cluster: a narrow model whose devices take the time of a wide one."""

from __future__ import annotations

import pytest

from benchmarks.evaluation.references import expanded
from benchmarks.paper.cells import cell_of
from benchmarks.paper.measured.stand_in import (
    BATCH,
    MODEL,
    SLOWDOWN,
    STAND_IN,
    of_stand_in,
    slowed_times,
)
from benchmarks.paper.store import read_cell
from planner.cost.evaluate import cost_of
from worker.contract import Directive, TrainingSpec


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


def test_the_ranks_of_a_job_that_names_the_papers_model_hear_of_the_stand_in():
    cell = cell_of(MODEL, "grow-3")
    plan = expanded(read_cell(cell)["heddle-3"]["counted"]["plan"])
    shape = cell.question().workload.model
    training = TrainingSpec(
        model=MODEL,
        shape=shape.to_json(),
        data="corpus",
        steps=3,
        global_batch=BATCH,
        sequence_length=2048,
        precision="fp16",
    )
    told = Directive(
        job="growing",
        epoch=1,
        phase="prepare",
        reason="start",
        plan=plan.to_json(),
        plan_digest=plan.digest,
        members=(),
        store="",
        training=training,
    )
    heard = of_stand_in(told)
    assert heard.training.model_shape().hidden == STAND_IN["hidden_size"]
    assert heard.training.model_shape().layers == shape.layers
    assert (heard.training.precision, heard.training.global_batch) == ("fp32", BATCH)
    assert heard.plan == told.plan
