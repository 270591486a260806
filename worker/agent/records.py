"""Steps, evaluations and switches that the ranks of a pod told; the newest of each are kept."""

from __future__ import annotations

import collections
from typing import TypeVar

from worker.contract import (
    RECORDS_KEPT,
    SAVES_KEPT,
    EvaluationRecord,
    SaveRecord,
    StepRecord,
    SwitchRecord,
)

RECENT = 8  # more than were on their way to a disk when a rank was lost
_Record = TypeVar("_Record", StepRecord, EvaluationRecord)


class Records:
    """The records of one pod.

    Attributes:
        switches: of each rank.
        saves: of each rank, as they ended.
    """

    def __init__(self) -> None:
        self._steps: collections.deque[StepRecord] = collections.deque(maxlen=RECORDS_KEPT)
        self._evaluations: collections.deque[EvaluationRecord] = collections.deque(
            maxlen=RECORDS_KEPT
        )
        self.saves: collections.deque[SaveRecord] = collections.deque(maxlen=SAVES_KEPT)
        self.switches: collections.deque[SwitchRecord] = collections.deque(maxlen=RECORDS_KEPT)

    def add_step(self, record: StepRecord) -> None:
        """Keep the first record of each step: all ranks of an epoch see the same."""
        _keep_first(self._steps, record)

    def add_evaluation(self, record: EvaluationRecord) -> None:
        """Keep the first record of each evaluation, likewise."""
        _keep_first(self._evaluations, record)

    def before(self, epoch: int) -> tuple[StepRecord | EvaluationRecord, ...]:
        """The steps and evaluations of earlier epochs among the newest `RECENT` of each."""
        steps = [record for record in list(self._steps)[-RECENT:] if record.epoch < epoch]
        held_out = [record for record in list(self._evaluations)[-RECENT:] if record.epoch < epoch]
        return (*steps, *held_out)

    def steps_from(self, step: int) -> tuple[StepRecord, ...]:
        """Records of this step and later ones."""
        return tuple(record for record in self._steps if record.step >= step)

    def evaluations_from(self, step: int) -> tuple[EvaluationRecord, ...]:
        """Records after so many completed steps, and later ones."""
        return tuple(record for record in self._evaluations if record.step >= step)


def _keep_first(kept: collections.deque[_Record], record: _Record) -> None:
    newest = kept[-1] if kept else None
    if newest is None or (record.epoch, record.step) > (newest.epoch, newest.step):
        kept.append(record)
