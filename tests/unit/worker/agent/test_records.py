"""All ranks of a pod tell the same of a step; one record of it is kept."""

from __future__ import annotations

from worker.agent.records import Records
from worker.contract import RECORDS_KEPT, EvaluationRecord, StepRecord


def step(epoch, index, loss=1.0):
    return StepRecord(epoch=epoch, step=index, loss=loss, gradient_norm=1.0, start_s=0.0, end_s=1.0)


def evaluation(epoch, index, loss=1.0):
    return EvaluationRecord(epoch=epoch, step=index, loss=loss, samples=4, start_s=0.0, end_s=1.0)


def test_the_first_record_of_each_step_is_kept():
    records = Records()
    for told in (step(1, 0), step(1, 0, loss=2.0), step(1, 1), step(1, 1), step(2, 1)):
        records.add_step(told)
    assert [(r.epoch, r.step, r.loss) for r in records.steps_from(0)] == [
        (1, 0, 1.0),
        (1, 1, 1.0),
        (2, 1, 1.0),
    ]
    assert [r.epoch for r in records.steps_from(1)] == [1, 2]


def test_the_first_record_of_each_evaluation_is_kept():
    records = Records()
    for told in (evaluation(1, 0), evaluation(1, 0, loss=2.0), evaluation(1, 5), evaluation(2, 5)):
        records.add_evaluation(told)
    assert [(r.epoch, r.step, r.loss) for r in records.evaluations_from(0)] == [
        (1, 0, 1.0),
        (1, 5, 1.0),
        (2, 5, 1.0),
    ]
    assert [r.epoch for r in records.evaluations_from(5)] == [1, 2]


def test_the_oldest_records_go_when_there_are_many():
    records = Records()
    for index in range(RECORDS_KEPT + 3):
        records.add_step(step(1, index))
    assert records.steps_from(0)[0].step == 3
